"""Routers tell each other what they have in flight, through a load stream beside each lane's own stream.

A router writes when its figures have changed, at most each `EVERY_S`, and again each `AGAIN_S` while there are any;
that tokens melt, which the others can work out, it tells each `MELTS_EVERY_S`. What two routers place at one replica
before they know of each other costs what neither foresaw, so changes are looked for, and read, every few milliseconds
(the p90 of eight routers at 30 requests a second is 4% over that of one at 5 ms, and 10% at 15 ms), but never for more
than a twentieth of the time. A router is known to the others by that, or by an entry without figures each `AGAIN_S`;
one that hears of no other writes no more than that. Streams are cut to a thousand entries or so: only a router's last
one is of use.

A stream of its own, since the lane's own stream belongs to agents: they cut it by their snapshots, judge by its tail
whether Redis lost something, and nobody else may write to it. Nothing here is on a request's path; where Redis is
away, figures of other routers end after `peers.GONE_S`, and each router goes on with its own and the engines'.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from router.feeds.redis_link import BLOCK_S, KeyFaultError, RedisLink
from router.fleet.fleet import Fleet
from router.fleet.peers import EVERY_S, PeerLoads, row_of
from router.kv.keys import lane_of
from router.kv.router_load import Row, decode, encode
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds")
LOOK_EVERY_S = 0.003
"""How soon a change is noticed."""
SPENT_SHARE = 0.05
"""Of the time, at most so much is spent on looking for changes, and so much on reading."""
MELTS_EVERY_S = 0.25
AGAIN_S = 1.0
ALONE_EVERY_S = 0.5
"""How often a router that knows of no other looks whether it has to tell anything."""


@dataclass(slots=True)
class _Written:
    """What Redis was last told of one lane."""

    rows: tuple[Row, ...] = ()
    at_s: float = float("-inf")


class LoadExchange:
    """One router's side.

    Args:
        lanes: How many lanes there are.
        clock: The fleet's clock, in seconds.
        metrics: Told how many other routers there are.
        group: What the workers of one router have in common: they hear of each other by shorter ways; random if left
            out.
        number: This worker's.
    """

    def __init__(
        self,
        fleet: Fleet,
        lanes: int,
        clock: Callable[[], float] = time.monotonic,
        metrics: Metrics | None = None,
        group: str | None = None,
        number: int = 0,
    ) -> None:
        self._fleet = fleet
        self._lanes = lanes
        self._clock = clock
        self._group = group or os.urandom(8).hex()
        # A worker that starts again in its seat is another one: what the last one told ends by itself.
        self._name = f"{self._group}/{number}-{os.urandom(4).hex()}"
        self._home = lane_of(self._name, lanes)
        self._written: dict[int, _Written] = {}
        self._cursors: dict[int, str] = {}
        self._lane_of: dict[str, int] = {}
        self._looked_for_s = self._heard_for_s = 0.0
        self._refused: set[str] = set()
        self._refusals = 0
        self._kept_s = float("-inf")
        self._metrics = metrics
        self.peers = PeerLoads(fleet)

    async def run(self, link: RedisLink) -> None:
        """Exchange until cancelled. Raises what the link raises when it breaks."""
        self._written.clear()
        self._cursors.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write(link))
            group.create_task(self._read(link))

    async def watch(self) -> None:
        """Let figures end that were not told again, until cancelled; also while Redis is away."""
        while True:
            self.peers.settle(self._clock())
            if self._metrics is not None:
                self._metrics.peers_are(self.peers.routers)
            await asyncio.sleep(ALONE_EVERY_S)

    async def exchange(self, link: RedisLink) -> None:
        """Tell what has changed, and hear what others told by now."""
        await self.tell(link)
        await self.hear(link, 0.0)

    async def tell(self, link: RedisLink) -> None:
        """Write what has changed, of each lane as often as allowed."""
        now_s, begun_s = self._clock(), time.perf_counter()
        self.peers.melt(now_s)
        due = self._due(now_s)
        self._looked_for_s = time.perf_counter() - begun_s
        if not due:
            return
        keep = now_s - self._kept_s >= AGAIN_S or any(lane not in self._written for lane in due)
        with self._refusing():
            await link.write_loads({lane: encode(self._name, rows) for lane, rows in due.items()}, keep)
        self._kept_s = now_s if keep else self._kept_s
        for lane, rows in due.items():
            self._written[lane] = _Written(rows, now_s)

    async def hear(self, link: RedisLink, block_s: float) -> None:
        """Take what others write; wait for it for so long."""
        with self._refusing():
            if len(self._cursors) < self._lanes:
                missing = [lane for lane in range(self._lanes) if lane not in self._cursors]
                self._cursors.update(await link.last_loads(missing))
            for lane, entries in await link.read_loads(self._cursors, block_s) if self._cursors else ():
                for entry_id, data, _ in entries:
                    self._cursors[lane] = entry_id
                    if data is not None:
                        self._hear(lane, data)
        self.peers.settle(self._clock())

    async def _write(self, link: RedisLink) -> None:
        while True:
            await self.tell(link)
            await asyncio.sleep(_pause_s(self._looked_for_s) if self.peers.routers else ALONE_EVERY_S)

    async def _read(self, link: RedisLink) -> None:
        while True:
            refusals = self._refusals
            await self.hear(link, BLOCK_S)
            # Entries that come close together are read together.
            is_well = self._cursors and refusals == self._refusals
            await asyncio.sleep(_pause_s(self._heard_for_s) if is_well else AGAIN_S)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Go on without what one key's state, or the rights of our user, do not allow."""
        try:
            yield
        except (ResponseError, KeyFaultError) as error:
            self._refusals += 1
            if str(error) not in self._refused and len(self._refused) < 16:
                self._refused.add(str(error))
                # Such as rights from before this was written: each router then counts its own, and what engines report.
                LOG.warning("routers' load can't be shared through Redis: %s", error)

    def _hear(self, lane: int, data: bytes) -> None:
        load = decode(data)
        if load is not None and load.router.partition("/")[0] != self._group:
            self.peers.hear(load.router, lane, load.rows, self._clock())

    def _due(self, now_s: float) -> Mapping[int, tuple[Row, ...]]:
        """Return what Redis is to be told now, by lane."""
        present: dict[int, list[Row]] = {}
        if self.peers.routers:
            for unit in self._fleet.units.values():
                if unit.in_flight.requests:
                    present.setdefault(self._lane(unit.unit_id), []).append(row_of(unit, now_s))
        due: dict[int, tuple[Row, ...]] = {}
        for lane in {*present, *(lane for lane, written in self._written.items() if written.rows), self._home}:
            rows, written = tuple(present.get(lane, ())), self._written.get(lane) or _Written()
            age_s = now_s - written.at_s
            is_due = age_s >= AGAIN_S and (bool(rows) or lane == self._home)
            if is_due or (age_s >= EVERY_S and _differ(rows, written.rows, age_s >= MELTS_EVERY_S)):
                due[lane] = rows
        return due

    def _lane(self, unit_id: str) -> int:
        lane = self._lane_of.get(unit_id)
        if lane is None:
            if len(self._lane_of) > 2 * len(self._fleet.units) + 64:
                self._lane_of.clear()
            lane = self._lane_of[unit_id] = lane_of(unit_id, self._lanes)
        return lane


def _differ(rows: Sequence[Row], written: Sequence[Row], melts: bool) -> bool:
    """Whether there is anything to tell: that a prompt still waits is known by its age, and what melts, well enough."""
    return len(rows) != len(written) or any(
        (new.unit, new.requests, new.computed_tokens, new.head_age_s < 0)
        != (old.unit, old.requests, old.computed_tokens, old.head_age_s < 0)
        or new.tokens > old.tokens
        or (melts and new.tokens != old.tokens)
        for new, old in zip(rows, written, strict=True)
    )


def _pause_s(spent_s: float) -> float:
    """Return how long to wait before the next time, when the last one took so long."""
    return max(LOOK_EVERY_S, spent_s / SPENT_SHARE)
