"""All sources of one router, as one thing to start, to ask and to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import aiohttp

from router.config import RouterConfig
from router.errors import ConfigurationError, Problem
from router.feeds.directory import Directory
from router.feeds.discovery import Discovery
from router.feeds.drains import Drains
from router.feeds.health import EngineProber
from router.feeds.load_exchange import LoadExchange
from router.feeds.probed import Probing
from router.feeds.rate_exchange import RateExchange
from router.feeds.redis_feed import LEASE_S, RedisFeed
from router.feeds.static_feed import StaticFeed
from router.fleet.fleet import Fleet
from router.index.announced import AnnouncedBlocks
from router.index.prefix_index import PrefixIndex
from router.index.shortfalls import Shortfalls
from router.kv.addresses import AllowedAddresses
from router.request.auth.limits import TenantLimits
from router.telemetry.metrics import Metrics
from router.texts import ModelTexts
from router.tls import EngineTls


class Feeds:
    """The feeds that the configuration asks for.

    Args:
        clock: The fleet's clock, in seconds.
        lease_s: Life of an agent's lease without renewal.
        announced: Hears of every block that a followed unit announces.
        texts: Given the tokenizers that agents publish.
        tls: How to speak to engines at https:// addresses.
        limits: Of tenants, divided among routers through Redis; None: there are no tenants.
        group: The router's name among routers where several workers serve it, and this worker's number there; None: it
            is the only process.
        engine_headers: Sent with each question to an engine: their API key. May change.
        probe_timeout_s: An engine that takes longer to answer a probe failed it.

    Raises:
        ConfigurationError: `registration.allow` holds what is neither a CIDR nor a host pattern.
    """

    def __init__(
        self,
        config: RouterConfig,
        fleet: Fleet,
        index: PrefixIndex,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        *,
        lease_s: float = LEASE_S,
        probe_timeout_s: float = 2.0,
        announced: AnnouncedBlocks | None = None,
        texts: ModelTexts | None = None,
        tls: EngineTls | None = None,
        shortfalls: Shortfalls | None = None,
        limits: TenantLimits | None = None,
        engine_headers: Mapping[str, str] | None = None,
        group: tuple[str, int] | None = None,
    ) -> None:
        self._tls = tls
        self._shortfalls = shortfalls
        self._limits = limits
        self._engine_headers = engine_headers
        try:
            AllowedAddresses(config.registration.allow)
        except ValueError as error:
            raise ConfigurationError([Problem("registration.allow", str(error))]) from error
        self._config = config
        self._fleet = fleet
        self._index = index
        self._metrics = metrics
        self._clock = clock
        self.announced = AnnouncedBlocks() if announced is None else announced
        self._lease_s = lease_s
        self._texts = texts
        self._probe_timeout_s = probe_timeout_s
        self.directory = Directory(fleet, clock)
        secret = config.registration.secret
        self.drains = Drains(fleet, self.directory, secret.encode() if secret else None)
        self.loads: LoadExchange | None = None
        """Where the routers of a fleet tell each other what is in flight; None without Redis."""
        if config.redis is not None:
            self.loads = LoadExchange(fleet, config.redis.lanes, clock, metrics, *(group or ()))
        self.static: StaticFeed | None = None
        self.discovery: Discovery | None = None
        self.redis: RedisFeed | None = None
        self.begun = asyncio.Event()
        """Set once the replicas of the configuration are in the fleet."""

    async def run(self) -> None:
        """Feed index and fleet until cancelled."""
        # Probes reuse no connection: they are to show whether the engine accepts new ones.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
            prober = EngineProber(session, self._probe_timeout_s, self._tls, self._engine_headers)
            config, fleet, metrics = self._config, self._fleet, self._metrics
            async with asyncio.TaskGroup() as group:
                probing = Probing(fleet, metrics, self.directory, prober, self._clock)
                self.static = StaticFeed(config, probing)
                self.static.announce_all()
                self.begun.set()
                group.create_task(self.static.run())
                self.discovery = Discovery(config, probing)
                group.create_task(self.discovery.run())
                group.create_task(self.drains.run())
                if config.redis is not None:
                    self.redis = RedisFeed(
                        config,
                        fleet,
                        self._index,
                        metrics,
                        self.directory,
                        prober,
                        self._clock,
                        lease_s=self._lease_s,
                        announced=self.announced,
                        texts=self._texts,
                        drains=self.drains,
                        shortfalls=self._shortfalls,
                        rates=RateExchange(self._limits) if self._limits is not None else None,
                        loads=self.loads,
                    )
                    group.create_task(self.redis.run())

    def configure(self, config: RouterConfig) -> None:
        """Follow other replicas and sources of them from now on; all else is read at the start alone."""
        self._config = config
        if self.static is not None:
            self.static.configure(config)
        if self.discovery is not None:
            self.discovery.configure(config)

    def reasons(self) -> list[str]:
        """Why the fleet is not known yet; empty once every source had its first round."""
        reasons: list[str] = []
        if self._config.replicas:
            reasons += self.static.reasons() if self.static is not None else ["replicas: not asked yet"]
        if self.discovery is not None:
            reasons += self.discovery.reasons()
        if self._config.redis is not None:
            reasons += self.redis.reasons() if self.redis is not None else ["redis: not reached yet"]
        return reasons
