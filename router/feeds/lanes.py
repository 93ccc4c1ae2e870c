"""Lanes -> index: each entry goes to the unit it is of, and is applied when it is the next one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.feeds.redis_link import Entry, KeyFaultError, RedisLink, id_key
from router.feeds.roster import Roster
from router.feeds.unit_feed import UnitFeed, Verdict
from router.feeds.watch import MemberWatch
from router.fleet.facts import EngineLoad, Trust
from router.fleet.fleet import Fleet
from router.fleet.replica import Unit
from router.index.announced import AnnouncedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.events import GroupKind
from router.kv.keys import Keys, lane_of
from router.kv.wire import BlocksBatch, Change, Heartbeat, Layer, StateChange, WireError, decode
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds.redis")
SLICE_S = 0.002
"""How long entries are applied before others get their turn on the loop."""
STORE_BLOCKS = 4_096
MAX_STRANGERS_KEPT = 1_000
STRANGER_PATIENCE_S = 15.0
"""A unit that publishes for so long without a believed lease is told of."""
STRANGER_ASKED_EACH_S = 0.25
"""How often the lease of a unit is read that publishes and is not followed."""


@dataclass(slots=True)
class _Stranger:
    """A unit that publishes and is not followed: since when, and when its lease was last asked for."""

    since_s: float
    asked_s: float = float("-inf")
    told: bool = False


@dataclass(slots=True, eq=False)
class FollowedUnit:
    """A unit whose blocks are kept in the index.

    Attributes:
        unit: The fleet's, as it was when this began.
        retry_s: A snapshot is not looked for before this.
        tries: Times a snapshot was looked for, since the unit waits.
    """

    unit: Unit
    lane: int
    feed: UnitFeed = field(default_factory=UnitFeed)
    retry_s: float = 0.0
    tries: int = 0


class LaneReader:
    """Applies what lanes carry.

    Args:
        roster: Whose units are believed.
        watch: Hears of states and goodbyes.
        announced: Hears of every block that is announced while a unit is followed without a gap.
    """

    def __init__(
        self,
        fleet: Fleet,
        index: PrefixIndex,
        roster: Roster,
        watch: MemberWatch,
        metrics: Metrics,
        keys: Keys,
        clock: Callable[[], float],
        unix_time: Callable[[], float],
        announced: AnnouncedBlocks | None = None,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._roster = roster
        self._watch = watch
        self._metrics = metrics
        self._keys = keys
        self._clock = clock
        self._unix_time = unix_time
        self._announced = AnnouncedBlocks() if announced is None else announced
        self._strangers: dict[str, _Stranger] = {}
        self.followed: dict[str, FollowedUnit] = {}
        self._left: dict[str, FollowedUnit] = {}
        """Units that are followed no longer, while what they reported is of use as advice."""
        self.cursors: dict[int, str] = {}
        """The last entry of each lane that was applied."""

    def counts(self) -> tuple[int, int]:
        """Return how many units are followed, and how many of them are up to date."""
        return len(self.followed), sum(item.feed.following for item in self.followed.values())

    async def begin(self, link: RedisLink) -> None:
        """Find where to read on: after the last entry applied, or at the end of a lane that is new or was lost.

        A lane whose key is no stream is left out; the others are read on. One whose node is away stays as it is.
        """
        before = dict(self.cursors)
        newest = await link.last_ids(range(self._keys.lanes))
        for lane, last in sorted(newest.items()):
            cursor = before.get(lane)
            if last is None:
                if cursor is not None or not before:
                    LOG.warning("a lane is not read: its key is no stream", extra={"key": self._keys.stream(lane)})
                self.cursors.pop(lane, None)
            elif (cursor is None and lane not in self.cursors) or (cursor and id_key(last) < id_key(cursor)):
                self.cursors[lane] = last
            else:
                continue
            self._distrust_lane(lane)

    async def look_again(self, link: RedisLink) -> None:
        """Find lanes that could not be read until now, and those that ended before what we read.

        A replica of Redis that synchronises anew, or a lane that was removed, goes back without any connection lost.
        """
        await self.begin(link)

    async def follow(self, link: RedisLink) -> None:
        """Read and apply until the link breaks."""
        began_s = time.perf_counter()
        while True:
            for lane, entries in await self._read(link):
                for entry in entries:
                    self._apply_entry(entry)
                    self.cursors[lane] = entry.entry_id
                    if time.perf_counter() - began_s > SLICE_S:
                        await asyncio.sleep(0)
                        began_s = time.perf_counter()

    async def _read(self, link: RedisLink) -> list[tuple[int, list[Entry]]]:
        lanes = set(self.cursors)
        try:
            return await link.read_lanes(self.cursors)
        except KeyFaultError:
            await self.begin(link)
            if set(self.cursors) == lanes:
                raise
            return []

    def _distrust_lane(self, lane: int) -> None:
        for item in self.followed.values():
            if item.lane == lane:
                item.feed.distrust("returned")
                self._announced.interrupted(item.unit.slot)
                item.retry_s, item.tries = 0.0, 0

    def members_changed(self) -> None:
        """Follow the units that are in the fleet with trust in their events, in their leases' epochs, and no others."""
        wanted: dict[str, tuple[Unit, int]] = {}
        others: dict[str, tuple[Unit, int]] = {}
        for member in self._roster.members.values():
            for unit_id, registered in member.units.items():
                unit = self._fleet.unit(unit_id)
                if unit is not None:
                    trusted = unit.trust in (Trust.EXACT, Trust.MAPPED)
                    (wanted if trusted else others)[unit_id] = (unit, registered.registration.epoch)
        for unit_id in [unit_id for unit_id in self.followed if unit_id not in wanted]:
            left = self._left[unit_id] = self.followed.pop(unit_id)
            self._announced.interrupted(left.unit.slot)
        self._void_left(others)
        for unit_id, (unit, epoch) in wanted.items():
            item = self.followed.get(unit_id)
            if item is None or item.unit is not unit:
                item = self.followed[unit_id] = FollowedUnit(unit, lane_of(unit_id, self._keys.lanes))
            self._index.set_strides(unit.slot, unit.strides)
            self._index.set_tails(unit.slot, unit.tails)
            if item.feed.on_lease(epoch) and item.feed.reason != "joined":
                # What was known is of a cache that is gone.
                self._index.clear(unit.slot)
                self._fleet.cache_voided(unit)
                self._missed(item)
            self._strangers.pop(unit_id, None)

    def _void_left(self, others: dict[str, tuple[Unit, int]]) -> None:
        """A unit that is not followed any more begins a new life: what is known is of a cache that is gone."""
        for unit_id, left in list(self._left.items()):
            unit, epoch = others.get(unit_id, (None, 0))
            if unit is not left.unit:
                del self._left[unit_id]
            elif epoch > left.feed.epoch:
                del self._left[unit_id]
                self._index.clear(left.unit.slot)
                self._fleet.cache_voided(left.unit)

    def apply_batch(self, item: FollowedUnit, batch: BlocksBatch, *, catching_up: bool = False) -> Verdict:
        """Judge a batch and, when it is the next one, change the index."""
        verdict = item.feed.on_batch(batch, catching_up=catching_up)
        if verdict is Verdict.APPLY:
            for change in batch.changes:
                self._apply_change(item.unit.slot, change)
            item.unit.blocks_as_of_s = self._clock()
        else:
            self._not_applied(item, verdict, catching_up=catching_up)
        return verdict

    async def replace_blocks(self, item: FollowedUnit, layers: Sequence[Layer]) -> bool:
        """Let a snapshot's blocks be all that a unit holds; False when it left or the load became void meanwhile."""
        slot = item.unit.slot
        self._announced.interrupted(slot)
        if self._index.blocks_of(slot):
            self._index.clear(slot)
        for tier, group, kind, hashes in layers:
            for start in range(0, len(hashes), STORE_BLOCKS):
                if not self.is_loading(item):
                    return False
                part = hashes[start : start + STORE_BLOCKS]
                self._apply_change(slot, Change("stored", tier, group, kind, part), op="snapshot")
                await asyncio.sleep(0)
        return self.is_loading(item)

    def is_followed(self, item: FollowedUnit) -> bool:
        """Tell whether the unit is still the one that holds its slot: slots are given to others."""
        unit_id = item.unit.unit_id
        return self.followed.get(unit_id) is item and self._fleet.unit(unit_id) is item.unit

    def is_loading(self, item: FollowedUnit) -> bool:
        """Tell whether the snapshot that is being loaded for a unit still counts."""
        return item.feed.loading and self.is_followed(item)

    def _apply_entry(self, entry: Entry) -> None:
        try:
            message = decode(entry.data) if entry.data is not None else None
        except WireError as error:
            self._metrics.message_read("broken")
            LOG.debug("a message can't be read: %s", error)
            return
        if message is None:
            self._metrics.message_read("unknown")
            return
        if isinstance(message, StateChange):
            self._metrics.message_read("state")
            self._watch.state_told(message.unit, message.epoch, message.state)
            return
        item = self.followed.get(message.unit)
        if item is not None and not self.is_followed(item):
            item = None
        if isinstance(message, Heartbeat):
            self._metrics.message_read("heartbeat")
            self._apply_heartbeat(item, message, entry)
        elif item is None:
            self._metrics.message_read("unregistered")
            self._heard_stranger(message.unit)
        else:
            self._metrics.message_read("batch")
            if self.apply_batch(item, message) is Verdict.APPLY:
                self._metrics.event_applied(self._unix_time() - id_key(entry.entry_id)[0] / 1000)
                self._heard(item, message, entry)

    def _heard(self, item: FollowedUnit, message: BlocksBatch | Heartbeat, entry: Entry) -> None:
        """Everything that a unit published before this entry is applied."""
        at_s = self._clock() - max(0.0, self._unix_time() - id_key(entry.entry_id)[0] / 1000)
        is_batch = isinstance(message, BlocksBatch)
        self._announced.heard(item.unit.slot, at_s, behind_s=message.behind_s + entry.late_s, batch=is_batch)

    def _apply_heartbeat(self, item: FollowedUnit | None, heartbeat: Heartbeat, entry: Entry) -> None:
        if item is not None:
            verdict = item.feed.on_heartbeat(heartbeat)
            if verdict in (Verdict.STALE, Verdict.AHEAD):
                self._not_applied(item, verdict)
                return
            if verdict is Verdict.APPLY and item.feed.following:
                item.unit.blocks_as_of_s = self._clock()
                self._heard(item, heartbeat, entry)
            else:
                self._not_applied(item, verdict)
        elif not self._watch.is_member(heartbeat.unit, heartbeat.epoch):
            return
        load = None
        if heartbeat.running is not None and heartbeat.waiting is not None and heartbeat.kv_usage is not None:
            load = EngineLoad(
                heartbeat.running,
                heartbeat.waiting,
                heartbeat.kv_usage,
                self._clock(),
                heartbeat.query_tokens,
                heartbeat.hit_tokens,
            )
        self._fleet.report_load(heartbeat.unit, load)

    def _not_applied(self, item: FollowedUnit, verdict: Verdict, *, catching_up: bool = False) -> None:
        if verdict is Verdict.AHEAD:
            self._watch.doubt(item.unit.unit_id)
        elif verdict is Verdict.GAP and catching_up:
            self._announced.interrupted(item.unit.slot)  # the snapshot is too old: the next one is waited for
        elif verdict is Verdict.GAP:
            self._missed(item)

    def _missed(self, item: FollowedUnit) -> None:
        self._announced.interrupted(item.unit.slot)
        if item.feed.reason != "joined":
            self._metrics.gap_found()
        item.retry_s, item.tries = 0.0, 0

    def _apply_change(self, slot: int, change: Change, op: str = "stored") -> None:
        if change.op == "cleared":
            self._index.clear(slot)
        elif change.op == "removed":
            self._index.remove(slot, change.hashes, change.tier, change.group)
            self._metrics.blocks_applied("removed", len(change.hashes))
        elif change.kind != GroupKind.FULL:
            # Sliding windows and the like hold the ends of prefixes.
            self._index.store_tail(slot, change.hashes, change.tier, change.group)
        else:
            self._index.store(slot, change.hashes, change.tier, change.group)
            self._announced.stored(slot, change.hashes)
            self._metrics.blocks_applied(op, len(change.hashes))

    def _heard_stranger(self, unit_id: str) -> None:
        now_s = self._clock()
        stranger = self._strangers.get(unit_id)
        if stranger is None:
            if len(self._strangers) >= MAX_STRANGERS_KEPT:
                return
            stranger = self._strangers[unit_id] = _Stranger(now_s)
        if now_s - stranger.asked_s > STRANGER_ASKED_EACH_S:
            stranger.asked_s = now_s
            self._watch.doubt(unit_id)
        if stranger.told or now_s - stranger.since_s <= STRANGER_PATIENCE_S:
            return
        if self._roster.member_of(unit_id) is None:
            stranger.told = True
            LOG.warning(
                "blocks are published for a unit that no believed lease tells of: see its agent's registration",
                extra={"unit": unit_id},
            )
