"""The forwarder: what every request on its way shares."""

from __future__ import annotations

import asyncio
import itertools

from router.config import LimitsConfig, RetryConfig, TimeoutsConfig
from router.proxy.deadlines import Deadlines
from router.proxy.exchange import Exchange
from router.proxy.forwarding import Forwarding
from router.proxy.pool import EnginePool
from router.proxy.reading import PromptReading
from router.proxy.seams import Health, Places, Reader, Records


class Forwarder:
    """Sends exchanges to engines: read, place, send, stream, account. See `Forwarding` for one request's way."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: LimitsConfig,
        retry: RetryConfig,
        timeouts: TimeoutsConfig,
        reader: Reader,
        placer: Places,
        fleet: Health,
        recorder: Records,
        pool: EnginePool,
        deadlines: Deadlines,
    ) -> None:
        self.loop = loop
        self.inline_body_bytes = limits.inline_body_bytes
        self.attempts = retry.attempts
        self.refusal_statuses = frozenset(retry.refusal_statuses)
        self.timeouts = timeouts
        self.reader = reader
        self.placer = placer
        self.fleet = fleet
        self.recorder = recorder
        self.pool = pool
        self.deadlines = deadlines
        self.reading = PromptReading(loop, reader, fleet.namings, limits)
        self.running: set[Forwarding] = set()

    def forward(self, exchange: Exchange) -> None:
        """Take an exchange; it is answered, whatever happens."""
        Forwarding(self, exchange).begin()

    def close(self) -> None:
        """Stop the reader's threads. Exchanges end with their connections."""
        self.reading.close()


class RequestIds:
    """Makes ids for requests that bring none: a random beginning for this process, and a count."""

    def __init__(self, beginning: str) -> None:
        self._beginning = beginning
        self._count = itertools.count(1)

    def __call__(self) -> str:
        """Return the next id, 24 characters or more."""
        return f"{self._beginning}{next(self._count):08x}"
