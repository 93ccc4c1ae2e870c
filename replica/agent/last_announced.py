"""When blocks were last announced: anew, as a further copy, or as the first one after all. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

MAX_ANNOUNCED = 20_000
"""Announcements that are remembered: the newest."""


class LastAnnounced:
    """Remembers events as they are: this is on every event's path, and is asked once in a while."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """`time.monotonic()` of the batch that is being read."""
        self._events: deque[tuple[float, Sequence[int]]] = deque()
        self._count = 0
        self._forgotten_s = float("-inf")

    def note(self, blocks: Sequence[int]) -> None:
        """They were announced now."""
        self._events.append((self.now_s, blocks))
        self._count += len(blocks)
        while self._count > MAX_ANNOUNCED:
            self._forgotten_s, oldest = self._events.popleft()
            self._count -= len(oldest)

    def among(self, blocks: Iterable[int], since_s: float) -> set[int]:
        """Return those that were announced at `since_s` or later, as far as anybody knows."""
        if self._forgotten_s >= since_s:
            return set(blocks)
        recent: set[int] = set()
        for at_s, announced in reversed(self._events):
            if at_s < since_s:
                break
            recent.update(announced)
        return recent.intersection(blocks)
