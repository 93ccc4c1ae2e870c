"""The forwarder: what every request on its way shares."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Collection

from router.config_bounds import LimitsConfig, RetryConfig, TimeoutsConfig
from router.fleet.replica import Replica
from router.placement import Placement
from router.proxy.continuing import ContinuingForwarding
from router.proxy.deadlines import Deadlines
from router.proxy.exchange import Exchange, Request
from router.proxy.forwarding import Forwarding
from router.proxy.head_pattern import stamped
from router.proxy.noting import Noting
from router.proxy.pool import EnginePool
from router.proxy.prompts import Prompts
from router.proxy.reading import PromptReading
from router.proxy.remote_reading import RemoteReading
from router.proxy.seams import Health, Places, Reader, Records
from router.proxy.turn import Turn
from router.proxy.waiting import Waiting
from router.request.prompt import Prompt
from router.request.remote import RemoteTokenizer
from router.request.token_cache import TokenCache
from router.scheduling.retry_budget import RetryBudget
from router.telemetry.tracing import Tracing

_log = logging.getLogger(__name__)


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
        turn: Turn,
        client_templates: bool = False,
        remote: RemoteTokenizer | None = None,
        token_cache: TokenCache | None = None,
    ) -> None:
        """Put together what requests share.

        Args:
            client_templates: Whether some model runs a template that the request brings: rendering it may block.
            remote: Asks replicas about prompts that the router has no tokenizer for; None: they are placed by load.
            token_cache: Where the chains of what they answer are kept.
        """
        self.loop = loop
        self.attempts = retry.attempts
        self.repeats_broken = retry.broken
        self.continues = retry.continuation
        self.refusal_statuses = frozenset(retry.refusal_statuses)
        self.timeouts = timeouts
        self.placer = placer
        self.fleet = fleet
        self.recorder = recorder
        self.pool = pool
        self.deadlines = deadlines
        reading = PromptReading(loop, reader, fleet.namings, limits)
        asking = RemoteReading(loop, remote, fleet, reading, recorder, limits, token_cache) if remote else None
        self.prompts = Prompts(reader, reading, asking, limits.inline_body_bytes, client_templates)
        self.tracing: Tracing | None = None
        self.running: set[Forwarding] = set()
        deadlines.watch_all(self.running)
        self.turn = turn
        self.noting = Noting(loop, turn, recorder)
        self.begun = 0
        """Requests so far."""
        self._retries = RetryBudget(retry.budget_share, retry.budget_reserve)
        self.waiting: Waiting | None = None
        """None while replicas have no limit (`limits.max_in_flight`): nothing is asked for then."""
        self._configure_waiting(limits)
        self._stamp = self._new_stamp()

    def configure(
        self, *, limits: LimitsConfig, retry: RetryConfig, timeouts: TimeoutsConfig, client_templates: bool
    ) -> None:
        """Take over other settings, for requests from now on."""
        self.attempts = retry.attempts
        self.repeats_broken = retry.broken
        self.continues = retry.continuation
        self.refusal_statuses = frozenset(retry.refusal_statuses)
        self.timeouts = timeouts
        self.prompts.configure(limits, client_templates=client_templates)
        self._retries.share, self._retries.reserve = retry.budget_share, retry.budget_reserve
        self._configure_waiting(limits)
        self._stamp = self._new_stamp()

    def _new_stamp(self) -> Forwarding:
        return ContinuingForwarding(self) if self.continues else Forwarding(self)

    def _configure_waiting(self, limits: LimitsConfig) -> None:
        if self.waiting is not None:
            self.waiting.configure(limits.queue_requests, self.timeouts.queue_s)
        elif limits.max_in_flight:
            self.waiting = Waiting(
                self.loop, self.deadlines, self.recorder, limits.queue_requests, self.timeouts.queue_s
            )

    def may_retry(self) -> bool:
        """Use one of the retries that are left (`retry.budget_share`)."""
        return self._retries.take(self.begun, time.monotonic())

    def place(self, prompt: Prompt, request: Request, tried: Collection[str]) -> Placement:
        """Choose a replica that was not tried for a request, reserve there, and record it.

        Raises:
            ModelNotFoundError, NoReplicaError: As the placer says.
        """
        begun_s = time.perf_counter()
        placement = self.placer.place(prompt, request.request_id, time.monotonic(), tried, request.wishes)
        took_s = time.perf_counter() - begun_s
        self.recorder.placed(placement.decision, took_s)
        if request.trace is not None:
            request.trace.placed.append((placement, took_s))
        return placement

    def count_failure(self, replica: Replica, *, refused_connection: bool) -> None:
        """Count a request that failed at a replica."""
        if self.fleet.failed(replica.replica_id, time.monotonic(), refused_connection=refused_connection):
            self.recorder.ejected()
            why = "it can't be connected to" if refused_connection else "its requests fail"
            _log.warning("replica %s at %s is ejected for a while: %s", replica.replica_id, replica.url, why)

    def forward(self, exchange: Exchange) -> None:
        """Take an exchange; it is answered, whatever happens."""
        self.begun += 1
        if self.tracing is not None:
            request = exchange.request
            request.trace = self.tracing.begin(request.headers, request.arrived_s, request.admitted_s)
        stamped(self._stamp).begin(exchange)

    def close(self) -> None:
        """Stop the reader's threads and questions. Exchanges end with their connections."""
        self.prompts.close()
        self.noting.settle()


class RequestIds:
    """Makes ids for requests that bring none: a random beginning for this process, and a count."""

    def __init__(self, beginning: str) -> None:
        self._beginning = beginning
        self._count = itertools.count(1)

    def __call__(self) -> str:
        """Return the next id, 24 characters or more."""
        return f"{self._beginning}{next(self._count):08x}"
