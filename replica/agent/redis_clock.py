"""What Redis' clock shows, by its answers so far. Pure: times are given.

Redis stamps what it is told when it comes, and a link that stalls lets it come late. So what is written says by when it
was ready in Redis' own time: the writer's clock may be wrong, and its steps are not known to be short.

Each answer shows a time between the question and itself. All of them together leave a narrow range, since both clocks
go on evenly; one outside it shows that Redis' clock was set, that it is another server, or that they drift.
"""

from __future__ import annotations


class RedisClock:
    """The range that Redis' clock is in, as seconds before the writer's own (monotonic) one."""

    def __init__(self) -> None:
        self._least_s: float | None = None
        self._most_s = float("inf")

    def note(self, asked_s: float, answered_s: float, redis_s: float) -> None:
        """Take a time that Redis told.

        Args:
            asked_s, answered_s: Between these (monotonic) it was so.
            redis_s: Unix time in seconds.
        """
        least_s, most_s = redis_s - answered_s, redis_s - asked_s
        if self._least_s is None or least_s > self._most_s or most_s < self._least_s:
            self._least_s, self._most_s = least_s, most_s
            return
        self._least_s = max(self._least_s, least_s)
        self._most_s = min(self._most_s, most_s)

    def at(self, now_s: float) -> float | None:
        """Return the Unix time in seconds that Redis shows at `now_s` at least; None before any answer."""
        return None if self._least_s is None else self._least_s + now_s
