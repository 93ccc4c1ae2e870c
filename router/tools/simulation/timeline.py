"""Virtual time: what happens when, in order.

Of what happens at one moment, what engines end comes first, so that a request finds the fleet as it is by then; then
what clients ask; then what engines begin. Otherwise what was planned first happens first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

END, ASK, BEGIN = 0, 1, 2
"""The order of what happens at one moment."""


class Timeline:
    """A queue of calls by time.

    Attributes:
        now_s: Seconds since the start.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._planned: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when_s: float, call: Callable[..., None], *args: Any, who: int = END) -> None:
        """Plan a call; in the past is now."""
        self._count += 1
        heapq.heappush(self._planned, (max(when_s, self.now_s), who, self._count, call, args))

    def run(self) -> None:
        """Carry out everything that is planned, and what that plans, until nothing is left."""
        planned, pop = self._planned, heapq.heappop
        while planned:
            self.now_s, _, _, call, args = pop(planned)
            call(*args)
