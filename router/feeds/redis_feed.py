"""Redis -> index and fleet: lanes, leases and snapshots, in the background. No request ever waits for it.

Three loops share one life of the link; when it breaks, all end and begin again after a pause:

    lanes      follow every lane's stream and apply what comes
    leases     read registry and leases each second, and at once those that lanes make doubtful: who is there
    snapshots  bring units that wait for one up to date (see snapshots.py)

A fourth outlives the link: engines are asked for their health while their leases can't be read (see watch.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable

from router.config import RouterConfig
from router.feeds.directory import Directory
from router.feeds.drains import Drains
from router.feeds.health import EngineProber
from router.feeds.lanes import LaneReader
from router.feeds.load_exchange import LoadExchange
from router.feeds.membership import FeedHealth
from router.feeds.published_texts import PublishedTexts
from router.feeds.rate_exchange import RateExchange
from router.feeds.redis_link import KeyFaultError, RedisError, RedisLink
from router.feeds.roster import Roster
from router.feeds.shortfalls import ShortfallTeller
from router.feeds.snapshots import SnapshotLoader
from router.feeds.unleased import MissingLeases
from router.feeds.watch import MemberWatch
from router.fleet.fleet import Fleet
from router.index.announced import AnnouncedBlocks
from router.index.prefix_index import PrefixIndex
from router.index.shortfalls import Shortfalls
from router.kv.addresses import AllowedAddresses
from router.kv.client.faults import kind_of, told
from router.kv.keys import Keys
from router.kv.lane_spread import LaneSpread
from router.telemetry.metrics import Metrics
from router.texts import ModelTexts

LOG = logging.getLogger("warmroute.feeds.redis")
LEASE_S = 10.0
"""What agents give their leases by default."""
ROUND_S = 1.0
DOUBTS_S = 0.02
"""Least pause between two readings of doubtful leases; ten times as long as the last one took, where that is more."""
MAX_PAUSE_S = 2.0


class RedisFeed:
    """Follows what agents publish.

    Args:
        config: `redis`, `registration` and `models` matter here.
        directory: Where membership is announced.
        prober: Asks engines for their health.
        clock: The fleet's clock, in seconds.
        unix_time: Wall clock, for the lag between Redis' entry and the index.
        lease_s: Life of a lease without renewal.
        announced: Hears of every block that a followed unit announces.
        texts: Given the tokenizers that agents publish; None: nobody reads them.
        drains: Operators' orders, exchanged with other routers; None: nobody gives any.
        shortfalls: What agents are to be told; None: nothing.
        rates: Tenants' limits, divided with other routers; None: there are none.
        loads: What is in flight, told to other routers and heard from them; None: nobody tells.
    """

    def __init__(
        self,
        config: RouterConfig,
        fleet: Fleet,
        index: PrefixIndex,
        metrics: Metrics,
        directory: Directory,
        prober: EngineProber,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        lease_s: float = LEASE_S,
        announced: AnnouncedBlocks | None = None,
        texts: ModelTexts | None = None,
        drains: Drains | None = None,
        shortfalls: Shortfalls | None = None,
        rates: RateExchange | None = None,
        loads: LoadExchange | None = None,
    ) -> None:
        if config.redis is None:
            raise ValueError("the Redis feed needs `redis` in the configuration")
        self._url = config.redis.url
        self._keys = Keys(config.redis.namespace, config.redis.lanes)
        self._metrics = metrics
        self._clock = clock
        secret = config.registration.secret
        sizes = {model.name: model.block_size for model in config.models}
        roster = Roster(
            secret.encode() if secret else None, AllowedAddresses(config.registration.allow), sizes, metrics
        )
        self._drains = drains or Drains(fleet, directory, secret.encode() if secret else None, unix_time)
        self._rates = rates
        self._loads = loads
        self._health = FeedHealth(lease_s)
        self._roster = roster
        self._watch = MemberWatch(roster, self._health, directory, fleet, prober, metrics, clock)
        self._lanes = LaneReader(fleet, index, roster, self._watch, metrics, self._keys, clock, unix_time, announced)
        self._snapshots = SnapshotLoader(self._lanes, metrics, clock)
        self._published = PublishedTexts(roster, texts or ModelTexts(), config.models, secret is not None, clock)
        self._teller = ShortfallTeller(shortfalls or Shortfalls(), roster, metrics, clock)
        self._leases: dict[str, bytes | None] = {}
        self._missing = MissingLeases(self._keys)
        self._spread: LaneSpread | None = None
        self._reached = self._registry_fault = self._is_partly_lost = self._answered = False
        self._said: set[str] = set()
        self._failure: str | None = None
        self.ready = asyncio.Event()
        """Set once leases were read and every unit then known was brought up to date, or has none to read."""

    @property
    def connected(self) -> bool:
        """Whether Redis answers now."""
        return self._health.up

    def reasons(self) -> list[str]:
        """Why the first round is not complete; empty once it was, for good: later losses do not empty the index.

        A router that starts into an outage may know of dead engines alone, so one must have answered.
        """
        if self.ready.is_set():
            members = self._roster.members.values()
            self._answered = self._answered or any(member.reached for member in members)
            return ["redis: no engine of its units has answered yet"] if members and not self._answered else []
        if not self._reached:
            return ["redis: not reached yet" + (f" ({self._failure})" if self._failure else "")]
        units, synced = self._lanes.counts()
        return [f"index: {synced} of {units} units read"]

    async def run(self) -> None:
        """Follow until cancelled. Redis trouble is said once and retried for ever."""
        self._metrics.feed_changed("redis", up=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run())
            group.create_task(self._follow())
            if self._rates is not None:
                group.create_task(self._rates.watch())
            if self._loads is not None:
                group.create_task(self._loads.watch())

    async def _follow(self) -> None:
        pause_s = 0.1
        while True:
            try:
                link = RedisLink(self._url, self._keys)
            except RedisError as error:
                self._lost(error)
                await asyncio.sleep(MAX_PAUSE_S)
                continue
            began_s = self._clock()
            # A task of its own: a task group that fails while it is cancelled would raise its failure and lose the
            # cancellation.
            session = asyncio.create_task(self._session(link))
            try:
                await asyncio.wait([session])
            finally:
                session.cancel()
                await asyncio.gather(session, return_exceptions=True)
                self._drains.link = None
                await link.close()
            self._lost(_first(session.exception()))
            if self._clock() - began_s > 5.0:
                pause_s = 0.1
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    async def _session(self, link: RedisLink) -> None:
        await link.open()
        await self._lanes.begin(link)
        await self._read_leases(link)
        self._metrics.feed_changed("redis", up=True)
        LOG.info("Redis is reached" if not self._reached else "Redis is back")
        self._tell_of_nodes_without_lanes(link)
        self._said.clear()
        self._reached, self._failure = True, None
        self._drains.link = link
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lanes.follow(link))
            group.create_task(self._snapshots.run(link, self.ready))
            group.create_task(self._lease_rounds(link))
            group.create_task(self._published.run(link))
            group.create_task(self._teller.run(link))
            if self._rates is not None:
                group.create_task(self._rates.run(link))
            if self._loads is not None:
                group.create_task(self._loads.run(link))

    def _tell_of_nodes_without_lanes(self, link: RedisLink) -> None:
        spread = link.lane_spread()
        if spread is None or spread.advised == spread.lanes or spread == self._spread:
            return
        self._spread = spread
        LOG.warning(
            "%d lanes lie on %d of the Cluster's %d nodes: %d reach more (redis.lanes, and --lanes of all agents)",
            spread.lanes,
            spread.reached,
            spread.nodes,
            spread.advised,
        )

    async def _lease_rounds(self, link: RedisLink) -> None:
        while True:
            due_s = self._clock() + ROUND_S
            while (left_s := due_s - self._clock()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._watch.doubts.wait()
                if self._watch.doubts.is_set():
                    began_s = self._clock()
                    await self._read_doubted(link)
                    await asyncio.sleep(max(DOUBTS_S, 10 * (self._clock() - began_s)))
            await self._read_leases(link)
            await self._lanes.look_again(link)

    async def _read_leases(self, link: RedisLink) -> None:
        asked = self._watch.take_doubted()
        link.away = None
        units = await self._units(link)
        await self._drains.exchange(link, _replicas_of(units))
        found = await link.leases(list(units))
        # Where a node of a Cluster is away, what was last read of its units stands.
        self._leases = {unit: found.get(unit, self._leases.get(unit)) for unit in units}
        self._health.link_up(self._clock(), first=not self._reached)
        self._partly_lost(link.away)
        self._take_leases(asked)
        if not self._registry_fault and link.away is None:
            self._missing.look(units, self._leases, self._clock())

    def _partly_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._health.partly_lost(self._clock())
        if (error is not None) == self._is_partly_lost:
            return
        self._is_partly_lost = error is not None
        if error is not None:
            LOG.warning("a part of Redis is lost: nobody there is missed, what it held stands: %s", told(error))
        else:
            LOG.info("all of Redis answers again")

    async def _units(self, link: RedisLink) -> dict[str, float]:
        try:
            units = await link.units(within_s=10 * self._health.lease_s)
        except KeyFaultError as error:
            if not self._leases:
                raise
            # Nobody new can join, but those who are there go on.
            if not self._registry_fault:
                LOG.warning("the registry can't be read: %s", error, extra={"key": self._keys.registry})
            self._registry_fault = True
            return dict.fromkeys(self._leases, 0.0)
        self._registry_fault = False
        return units

    async def _read_doubted(self, link: RedisLink) -> None:
        asked = self._watch.take_doubted()
        await self._drains.exchange(link, _replicas_of(asked))
        leases = await link.leases(sorted(asked))
        # Names that somebody made up are not kept.
        self._leases.update({unit: data for unit, data in leases.items() if data is not None or unit in self._leases})
        self._take_leases(asked)

    def _take_leases(self, asked: set[str]) -> None:
        self._watch.leases_read(self._leases, asked)
        self._lanes.members_changed()
        self._snapshots.wake()
        units_known, synced = self._lanes.counts()
        self._metrics.feed_units(synced, units_known - synced)

    def _lost(self, error: BaseException | None) -> None:
        # RuntimeError is uvloop's word for writing to a connection that closed.
        if not isinstance(error, (RedisError, OSError, TimeoutError, RuntimeError)):
            # A fault of ours: the index stays what it is, and a new session reads on.
            LOG.error("the feed failed", exc_info=error)
        reason = told(error) if error is not None else "it ended"
        was_up, self._failure = self._health.up, reason
        self._health.link_down()
        self._metrics.feed_changed("redis", up=False)
        if was_up:
            self._metrics.feed_lost()
            self._said.clear()
            LOG.warning("Redis is lost: routing goes on from memory, engines are asked for their health: %s", reason)
        elif error is not None and kind_of(error) not in self._said:
            LOG.warning("Redis is %s, trying on: %s", "still lost" if self._reached else "not reached", reason)
        if error is not None:
            self._said.add(kind_of(error))


def _replicas_of(units: Iterable[str]) -> set[str]:
    return {unit.rpartition("/")[0] for unit in units} - {""}


def _first(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
