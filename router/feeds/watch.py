"""Who is in the fleet while leases come and go: applies the rules of membership.py, and asks engines themselves.

Lanes are not signed, leases may be. So what a lane says of a unit's state or of a new epoch is a hint and no more: the
unit's lease is read at once, and that decides. A goodbye counts when the lease is gone; draining, when it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping

from router.feeds.directory import Directory
from router.feeds.health import EngineProber
from router.feeds.membership import FAILED_PROBES_DOWN, Departures, FeedHealth, Standing
from router.feeds.roster import Member, Roster
from router.fleet.fleet import Fleet
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds.redis")
PROBE_EACH_S = 1.0
PROBES_AT_ONCE = 64
WAITED_S = 3.0
"""An engine with a prompt that waits longer for its first byte is asked whether it is alive."""
LOAD_SILENCE_S = 2.5
"""So is one whose agent tells no load for so long: it hangs, or its agent does, and its lease still holds."""
MAX_DOUBTED = 1_000
"""Units whose leases are read at once; whoever writes to a lane can name any."""


class MemberWatch:
    """Announces, lowers trust, marks down and withdraws."""

    def __init__(
        self,
        roster: Roster,
        health: FeedHealth,
        directory: Directory,
        fleet: Fleet,
        prober: EngineProber,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._health = health
        self._directory = directory
        self._fleet = fleet
        self._prober = prober
        self._metrics = metrics
        self._clock = clock
        self._departures = Departures(health.lease_s)
        self._empty = False
        self._urls: dict[str, str] = {}
        self._doubted: set[str] = set()
        self._goodbyes: dict[str, int] = {}
        self._joined = asyncio.Event()
        self.doubts = asyncio.Event()
        """Set while there are units whose leases are to be read at once."""

    def leases_read(self, leases: Mapping[str, bytes | None], asked: Collection[str] = ()) -> None:
        """Take a round of leases, read just now.

        Args:
            leases: Of all units in the registry.
            asked: Units that were doubted when the reading began.
        """
        now_s = self._clock()
        if not leases and self._roster.members and not self._empty:
            self._health.emptied(now_s)
            LOG.warning("Redis was emptied: nobody is missed until agents had time to come back")
        self._empty = not leases
        changed = self._roster.read(leases, now_s)
        for member in list(self._roster.members.values()):
            if self._judge(member, now_s) or member.replica_id in changed:
                self._announce(member)
        if self._unasked():
            self._joined.set()
        for unit_id in asked:
            epoch = self._goodbyes.pop(unit_id, None)
            if epoch is not None and leases.get(unit_id) is None:
                self._said_goodbye(unit_id, epoch)

    def doubt(self, unit_id: str) -> None:
        """Have a unit's lease read at once: its lane tells of what its lease does not."""
        if unit_id not in self._doubted and len(self._doubted) < MAX_DOUBTED:
            self._doubted.add(unit_id)
            self.doubts.set()

    def take_doubted(self) -> set[str]:
        """Return the units that were doubted since the last call."""
        doubted, self._doubted = self._doubted, set()
        self.doubts.clear()
        return doubted

    def state_told(self, unit_id: str, epoch: int, state: str) -> None:
        """A lane says something of a unit's state."""
        member = self._roster.member_of(unit_id)
        if member is None:
            if state != "gone":
                self.doubt(unit_id)
            return
        if epoch < member.units[unit_id].registration.epoch:
            return
        if state == "gone" and epoch == member.units[unit_id].registration.epoch:
            self._goodbyes[unit_id] = epoch
        self.doubt(unit_id)

    def is_member(self, unit_id: str, epoch: int) -> bool:
        """Tell whether a unit is one of a member, and this its lease's epoch."""
        member = self._roster.member_of(unit_id)
        return member is not None and epoch == member.units[unit_id].registration.epoch

    def _said_goodbye(self, unit_id: str, epoch: int) -> None:
        member = self._roster.member_of(unit_id)
        if member is None or member.units[unit_id].registration.epoch != epoch:
            return
        if self._departures.may_leave(len(self._fleet.replicas), self._clock()):
            self._roster.depart(unit_id, epoch)
            self._drop_unit(member, unit_id)
        else:
            member.goodbyes[unit_id] = epoch

    async def run(self) -> None:
        """Ask engines of which nobody else tells that they are alive, until cancelled."""
        gate = asyncio.Semaphore(PROBES_AT_ONCE)
        while True:
            began_s = self._clock()
            targets = [member for member in self._roster.members.values() if self._needs_probe(member, began_s)]
            await asyncio.gather(*(self._probe(member, gate) for member in targets))
            while (left_s := began_s + PROBE_EACH_S - self._clock()) > 0:
                self._joined.clear()
                # Not wait_for: it may swallow a cancellation that comes with the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._joined.wait()
                await asyncio.gather(*(self._probe(member, gate) for member in self._unasked()))

    def _unasked(self) -> list[Member]:
        """Members that joined since the last round: they are asked at once."""
        return [member for member in self._roster.members.values() if not member.reached and not member.failed_probes]

    def _needs_probe(self, member: Member, now_s: float) -> bool:
        if not self._health.up or member.goodbyes or member.failed_probes or not member.reached:
            return True
        return now_s - member.seen_s > 2.5 * PROBE_EACH_S or self._may_hang(member, now_s)

    def _may_hang(self, member: Member, now_s: float) -> bool:
        replica = self._fleet.replicas.get(member.replica_id)
        return replica is not None and any(
            unit.load is None
            or now_s - unit.load.at_s > LOAD_SILENCE_S
            or unit.in_flight.oldest_waiting_s(now_s) > WAITED_S
            for unit in replica.units
        )

    async def _probe(self, member: Member, gate: asyncio.Semaphore) -> None:
        async with gate:
            passed = await self._prober.is_healthy(member.url)
        self._metrics.engine_probed(passed=passed)
        if self._roster.members.get(member.replica_id) is not member:
            return
        if passed:
            self._passed(member)
            return
        member.failed_probes += 1
        if member.engine_failed:
            if member.failed_probes == FAILED_PROBES_DOWN:
                LOG.warning("engine %s: no requests go there", member.failure, extra={"replica": member.replica_id})
            self._fleet.mark_down(member.replica_id, member.failure)
            for unit_id, epoch in list(member.goodbyes.items()):
                self._roster.depart(unit_id, epoch)
                self._drop_unit(member, unit_id)

    def _passed(self, member: Member) -> None:
        if member.engine_failed:
            LOG.info("engine is back", extra={"replica": member.replica_id})
        member.failed_probes = 0
        member.reached = True
        self._fleet.mark_up(member.replica_id)

    def _judge(self, member: Member, now_s: float) -> bool:
        changed = False
        for unit_id, unit in list(member.units.items()):
            standing = self._health.standing(unit.seen_s, now_s, engine_failed=member.engine_failed)
            if standing is Standing.FORGOTTEN:
                self._drop_unit(member, unit_id)
                continue
            lapsed = standing is Standing.LAPSED or (standing is Standing.MISSING and unit.lapsed)
            if lapsed != unit.lapsed:
                unit.lapsed = lapsed
                changed = True
                text = "its agent is missing: trust is lowered" if lapsed else "its agent is back"
                LOG.log(logging.WARNING if lapsed else logging.INFO, text, extra={"unit": unit_id})
        return changed and bool(member.units)

    def _drop_unit(self, member: Member, unit_id: str) -> None:
        member.units.pop(unit_id, None)
        member.goodbyes.pop(unit_id, None)
        if member.units:
            self._announce(member)
            return
        self._roster.members.pop(member.replica_id, None)
        self._urls.pop(member.replica_id, None)
        self._directory.withdraw("redis", member.url, member.replica_id)

    def _announce(self, member: Member) -> None:
        if not member.units:
            return
        former = self._urls.get(member.replica_id)
        if former is not None and former != member.url:
            self._directory.withdraw("redis", former, member.replica_id)
        self._urls[member.replica_id] = member.url
        if not self._directory.announce(self._roster.facts(member)):
            LOG.warning("its name belongs to another address", extra={"replica": member.replica_id})
        elif member.engine_failed:
            self._fleet.mark_down(member.replica_id, member.failure)
