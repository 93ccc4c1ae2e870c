"""A token bucket: a minute's worth at most, refilled evenly. Time is a parameter."""

from __future__ import annotations

MINUTE_S = 60.0


class Bucket:
    """What may still be used of a limit.

    It may be overdrawn: what was used is known only afterwards, and a request that is larger than the bucket passes
    when the bucket is full.

    Attributes:
        limit: Units a minute, as configured.
        share: How much of it this router may give, over 0 and up to 1; see `router.request.auth.shares`.
        asked: Units asked for so far, granted or not.
    """

    __slots__ = ("_at_s", "_level", "asked", "limit", "share")

    def __init__(self, limit: float, now_s: float) -> None:
        self.limit = limit
        self.share = 1.0
        self.asked = 0.0
        self._level = limit
        self._at_s = now_s

    @property
    def capacity(self) -> float:
        """Units that it holds when full."""
        return self.limit * self.share

    def remaining(self, now_s: float) -> float:
        """Units that may be used now; below 0 when it is overdrawn."""
        capacity = self.capacity
        elapsed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        self._level = min(capacity, self._level + elapsed_s * capacity / MINUTE_S)
        return self._level

    def wait_s(self, units: float, now_s: float) -> float:
        """Seconds until so many may be used; 0 when they may now."""
        missing = min(units, self.capacity) - self.remaining(now_s)
        return 0.0 if missing <= 1e-9 else missing * MINUTE_S / self.capacity

    def full_in_s(self, now_s: float) -> float:
        """Seconds until it is full again."""
        return (self.capacity - self.remaining(now_s)) * MINUTE_S / self.capacity

    def take(self, units: float, now_s: float) -> float:
        """Use units if they are there; return the seconds to wait, 0 when they were taken."""
        self.asked += units
        wait_s = self.wait_s(units, now_s)
        if not wait_s:
            self._level -= units
        return wait_s

    def give(self, units: float, now_s: float) -> None:
        """Put back what was taken and not used; below 0: use more."""
        self._level = min(self.capacity, self.remaining(now_s) + units)

    def resize(self, limit: float, share: float, now_s: float) -> None:
        """Go on with another limit or share: nothing is given that was not earned under the old one."""
        level = self.remaining(now_s)
        self.limit, self.share = limit, share
        self._level = min(level, self.capacity)
