"""When an absent replica is missed: rules alone, with the clock as a parameter.

Absence is judged only while the feed is healthy. Redis lost, failed over or emptied says nothing about engines, so
membership freezes, and for three lease times after the link is back nobody is missed. After that an agent whose lease
is gone lowers its replica's trust, and no more: the engine may be fine. Only an engine that fails its probes leaves.

A replica that said goodbye leaves at once. But one word in a stream is cheap: no more than 30% of the fleet may leave
so within a lease time; the rest must fail their probes as well.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

GRACE_LEASES = 3
MAX_UNPROBED_SHARE = 0.3
FAILED_PROBES_DOWN = 2
FORGET_LEASES = 6
"""A replica that has had no lease and failed its probes for so long is withdrawn."""


class Standing(StrEnum):
    """Where a unit stands."""

    PRESENT = "present"
    MISSING = "missing"
    """No lease now: its engine is probed, nothing else changes yet."""
    LAPSED = "lapsed"
    """No lease for a lease time: its trust is lowered."""
    FORGOTTEN = "forgotten"
    """Long without a lease, and its engine fails its probes: it is withdrawn."""


class FeedHealth:
    """Whether absence means anything now.

    Args:
        lease_s: Seconds a lease lives without renewal.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.up = False
        self._trusted_from_s = float("inf")

    def link_up(self, now_s: float, *, first: bool) -> None:
        """Redis answers. The first time there is nobody to be missed, so no grace is needed."""
        if not self.up:
            self.up = True
            self._trusted_from_s = now_s if first else now_s + GRACE_LEASES * self.lease_s

    def link_down(self) -> None:
        """Redis does not answer: membership freezes."""
        self.up = False

    def emptied(self, now_s: float) -> None:
        """All leases are gone at once: that is Redis, not the fleet. Agents write theirs again."""
        self._trusted_from_s = max(self._trusted_from_s, now_s + GRACE_LEASES * self.lease_s)

    def partly_lost(self, now_s: float) -> None:
        """A node of a Cluster is away: agents whose leases are there may be late for as long after it is back."""
        self.emptied(now_s)

    def judges_absence(self, now_s: float) -> bool:
        """Tell whether a missing lease counts."""
        return self.up and now_s >= self._trusted_from_s

    def standing(self, seen_s: float, now_s: float, *, engine_failed: bool) -> Standing:
        """Judge a unit.

        Args:
            seen_s: When its lease was last read; `now_s` itself when it is there.
            engine_failed: Whether `FAILED_PROBES_DOWN` probes of its engine failed in a row.
        """
        absent_s = now_s - seen_s
        if absent_s <= 0:
            return Standing.PRESENT
        if not self.judges_absence(now_s):
            return Standing.MISSING
        if engine_failed and absent_s >= FORGET_LEASES * self.lease_s:
            return Standing.FORGOTTEN
        return Standing.LAPSED if absent_s >= self.lease_s else Standing.MISSING


class Departures:
    """How many may leave on their word alone.

    Args:
        window_s: Goodbyes within this time count together.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._left_s: deque[float] = deque()

    def may_leave(self, fleet_size: int, now_s: float) -> bool:
        """Tell whether one more may leave unprobed, and count it when so. One replica alone always may.

        Args:
            fleet_size: Replicas now, the leaving one included.
        """
        while self._left_s and self._left_s[0] <= now_s - self._window_s:
            self._left_s.popleft()
        size_before = fleet_size + len(self._left_s)
        if self._left_s and (len(self._left_s) + 1) > MAX_UNPROBED_SHARE * size_before:
            return False
        self._left_s.append(now_s)
        return True
