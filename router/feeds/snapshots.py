"""Bringing units up to date: snapshot, then the lane's tail after it, until the live reader can go on.

Lane by lane, so that a lane's tail is read once for all its units that wait. An agent begins each epoch with a
snapshot; where the newest one is of another epoch than the lease, the next is waited for.

Whatever awaits here lets the live reader and the leases' reader in, who may void the load (`UnitFeed.loading`): so each
step looks again, and so does the last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from router.feeds.lanes import FollowedUnit, LaneReader
from router.feeds.redis_link import READ_ENTRIES, KeyFaultError, RedisLink, id_key
from router.kv.wire import BlocksBatch, WireError, decode
from router.telemetry.metrics import Metrics

IDLE_S = 0.25
MAX_RETRY_S = 2.0


class SnapshotLoader:
    """Serves the units that wait for a snapshot."""

    def __init__(self, lanes: LaneReader, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._lanes = lanes
        self._metrics = metrics
        self._clock = clock
        self._news = asyncio.Event()

    def wake(self) -> None:
        """A unit may be waiting."""
        self._news.set()

    async def run(self, link: RedisLink, ready: asyncio.Event) -> None:
        """Serve until the link breaks; `ready` is set once every unit of the first round had its try."""
        while True:
            waiting = self._waiting()
            for lane in sorted({item.lane for item in waiting}):
                await self._load_lane(link, lane, [item for item in waiting if item.lane == lane])
            if all(item.feed.following or item.tries for item in self._lanes.followed.values()):
                ready.set()
            self._news.clear()
            try:
                async with asyncio.timeout(IDLE_S / 10 if waiting else IDLE_S):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _waiting(self) -> list[FollowedUnit]:
        now_s = self._clock()
        return [item for item in self._lanes.followed.values() if not item.feed.following and item.retry_s <= now_s]

    async def _load_lane(self, link: RedisLink, lane: int, items: list[FollowedUnit]) -> None:
        catching_up: dict[str, FollowedUnit] = {}
        starts: list[str] = []
        for item in items:
            item.tries += 1
            item.retry_s = self._clock() + min(MAX_RETRY_S, 0.025 * 2 ** min(item.tries, 7))
            snapshot = await link.snapshot(item.unit.unit_id)
            if snapshot is None or not self._lanes.is_followed(item) or not item.feed.on_snapshot(snapshot):
                continue
            layers = snapshot.layers
            if await self._lanes.replace_blocks(item, layers):
                catching_up[item.unit.unit_id] = item
                starts.append(snapshot.stream_id)
        if catching_up:
            # A lane whose key is no stream is read on when it is one: its units wait.
            with contextlib.suppress(KeyFaultError):
                await self._read_tail(link, lane, min(starts, key=id_key), catching_up)

    async def _read_tail(self, link: RedisLink, lane: int, after: str, catching_up: dict[str, FollowedUnit]) -> None:
        while True:
            # The live reader drops what these units are sent while they catch up, so go on until it is overtaken. Where
            # it stood before this question, its answer covers; what it read meanwhile may have come after the answer.
            covered = self._lanes.cursors.get(lane, "0-0")
            entries = await link.tail(lane, after)
            for entry in entries:
                self._catch_up(entry.data, catching_up)
            if entries:
                after = entries[-1].entry_id
            if len(entries) < READ_ENTRIES:
                read_to = max(id_key(after), id_key(covered))
                if read_to >= id_key(self._lanes.cursors.get(lane, "0-0")):
                    break
        for item in catching_up.values():
            if self._lanes.is_loading(item):
                self._metrics.unit_resynced(item.feed.reason)
                item.feed.caught_up()
                item.retry_s, item.tries = 0.0, 0
                item.unit.blocks_as_of_s = self._clock()

    def _catch_up(self, data: bytes | None, catching_up: dict[str, FollowedUnit]) -> None:
        try:
            message = decode(data) if data is not None else None
        except WireError:
            return
        if not isinstance(message, BlocksBatch):
            return
        item = catching_up.get(message.unit)
        if item is None:
            return
        if self._lanes.is_loading(item):
            self._lanes.apply_batch(item, message, catching_up=True)
        else:
            del catching_up[message.unit]
