"""A load that is overtaken: what is left of an old snapshot never reaches the index."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from router.config import RouterConfig
from router.feeds import lanes as lanes_module
from router.feeds.directory import Directory
from router.feeds.lanes import LaneReader
from router.feeds.membership import FeedHealth
from router.feeds.redis_link import RedisLink
from router.feeds.roster import Roster
from router.feeds.snapshots import SnapshotLoader
from router.feeds.watch import MemberWatch
from router.fleet.fleet import Fleet
from router.index.prefix_index import PrefixIndex
from router.kv import registration
from router.kv.addresses import AllowedAddresses
from router.kv.keys import Keys
from router.telemetry.metrics import Metrics

UNIT = "r0/0"


class Parts:
    """The parts of a feed, which a test moves by hand: no live reader runs, no lease is read by itself."""

    def __init__(self, url: str) -> None:
        self.link = RedisLink(url, Keys())
        self.index = PrefixIndex()
        self.fleet = Fleet()
        metrics = Metrics("test", RouterConfig.model_fields["paths"].get_default(call_default_factory=True))
        roster = Roster(None, AllowedAddresses(()), {}, metrics)
        directory = Directory(self.fleet, time.monotonic)
        self.watch = MemberWatch(
            roster,
            FeedHealth(10.0),
            directory,
            self.fleet,
            None,
            metrics,
            time.monotonic,  # type: ignore[arg-type]
        )
        self.lanes = LaneReader(self.fleet, self.index, roster, self.watch, metrics, Keys(), time.monotonic, time.time)
        self.loader = SnapshotLoader(self.lanes, metrics, time.monotonic)

    def read_lease(self, lease: registration.Registration) -> None:
        """Take a lease as the feed does."""
        self.watch.leases_read({lease.unit: registration.encode(lease, None)})
        self.lanes.members_changed()
        self.loader.wake()

    def held(self) -> set[int]:
        """Hashes in the index."""
        return {block for block, _, _ in self.index.dump(self.lanes.followed[UNIT].unit.slot)}


@pytest.fixture
async def parts(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parts]:
    """Parts whose loader runs, a block a slice."""
    monkeypatch.setattr(lanes_module, "STORE_BLOCKS", 1)
    one = Parts(redis_url)
    await one.link.open()
    await one.lanes.begin(one.link)
    task = asyncio.create_task(one.loader.run(one.link, asyncio.Event()))
    yield one
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await one.link.close()


async def half_loaded(parts: Parts, old: Any) -> None:
    """Wait until a snapshot of 1,000 blocks is being stored, and not yet whole."""
    await old.snapshot(list(range(1000)), await old.store(*range(1000)))
    parts.read_lease(old.registration())
    async with asyncio.timeout(10):
        while not parts.held():  # noqa: ASYNC110 - the turn of the loop is what is waited for
            await asyncio.sleep(0)
    assert len(parts.held()) < 1000


async def test_an_epoch_that_begins_between_two_slices_ends_the_load(
    parts: Parts, writer: Callable[..., Any], eventually: Any
) -> None:
    """Of the dead cache nothing stays, and the new epoch's first batches are applied, not taken for duplicates."""
    old, new = writer(UNIT, epoch=1), writer(UNIT, epoch=2)
    old.sequence = 5  # so that the new epoch's batches bear numbers that the old one had
    await half_loaded(parts, old)
    parts.read_lease(new.registration())
    assert parts.held() == set()
    feed = parts.lanes.followed[UNIT].feed
    await eventually(lambda: parts.lanes.followed[UNIT].tries >= 2)  # it looked again, and found the old snapshot
    assert (parts.held(), feed.following, feed.sequence) == (set(), False, 0)
    await new.snapshot([])
    await new.store(7, 8)
    await eventually(lambda: feed.following)
    assert (parts.held(), feed.sequence) == ({7, 8}, 1)


async def test_a_lane_that_is_lost_between_two_slices_ends_the_load(
    parts: Parts, writer: Callable[..., Any], redis: Any, eventually: Any
) -> None:
    """A Redis that came back emptied says nothing of what was half loaded: the unit waits."""
    old = writer(UNIT, epoch=1)
    await half_loaded(parts, old)
    await redis.flushall()
    feed = parts.lanes.followed[UNIT].feed
    feed.distrust("returned")
    await eventually(lambda: parts.lanes.followed[UNIT].tries >= 2)
    assert not feed.following
    assert len(parts.held()) < 1000


async def test_what_the_live_reader_dropped_after_the_tail_was_answered_is_read(
    parts: Parts, writer: Callable[..., Any], eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that comes between Redis' answer and its reading is in neither: the tail is asked for once more."""
    one = writer(UNIT, epoch=1)
    await one.snapshot([1])
    tail = parts.link.tail
    asked = 0

    async def overtaken(lane: int, after: str) -> Any:
        nonlocal asked
        asked += 1
        answer = await tail(lane, after)
        if asked == 1:
            await one.store(2)
            for found, entries in await parts.link.read_lanes(parts.lanes.cursors):
                for entry in entries:
                    parts.lanes._apply_entry(entry)
                    parts.lanes.cursors[found] = entry.entry_id
        return answer

    monkeypatch.setattr(parts.link, "tail", overtaken)
    parts.read_lease(one.registration())
    await eventually(lambda: parts.lanes.followed[UNIT].feed.following)
    assert parts.held() == {1, 2}
