"""What waits to be published, until when, and how far it is behind the engine. Pure: times are given.

Changes of some milliseconds are joined, since an entry of a stream costs as much as nine blocks. Entries of few blocks,
which decoding makes (one block each 16 tokens), are also spaced: after one, the next few wait a little longer. The
first change after a quiet time waits only for its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from replica.agent.coalescer import Coalescer
from router.kv.wire import Change

FEW_BLOCKS = 24
SPACED = 6
"""Entries of fewer than `FEW_BLOCKS` are this many times as far apart as changes are joined for: with 5 ms half of all
changes wait for less than 13 ms, under whatever traffic."""


class Outbox:
    """One unit's changes on their way.

    Args:
        join_s: How long changes are joined.

    Attributes:
        batches: What was taken and is not known to be published.
    """

    def __init__(self, join_s: float) -> None:
        self._join_s = join_s
        self._waiting = Coalescer()
        self._oldest_s: float | None = None
        self._newest_s = 0.0
        self._made_unix_s: float | None = None
        self._taken_s = float("-inf")
        self._taken_newest: tuple[float, float | None] = (0.0, None)
        self.batches: list[tuple[Change, ...]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting) or bool(self.batches)

    @property
    def blocks(self) -> int:
        """Blocks that wait."""
        return self._waiting.blocks

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits that was not taken."""
        return self._oldest_s is not None

    @property
    def due_s(self) -> float:
        """When what waits is to be published (monotonic); 0 where nothing does."""
        if self._oldest_s is None:
            return 0.0
        joined_s = self._oldest_s + self._join_s
        return joined_s if self.blocks >= FEW_BLOCKS else max(joined_s, self._taken_s + SPACED * self._join_s)

    def add(self, changes: Sequence[Change], received_s: float, made_unix_s: float | None) -> None:
        """Take changes.

        Args:
            received_s: When their frame was read (monotonic).
            made_unix_s: When the engine says that it made it, by its own clock.
        """
        self._waiting.add(changes)
        self._newest_s, self._made_unix_s = received_s, made_unix_s
        if self._oldest_s is None:
            self._oldest_s = received_s

    def drop(self) -> None:
        """Forget what waits."""
        self._waiting.drop()
        self._oldest_s = None

    def void(self) -> None:
        """Forget everything, what was taken too."""
        self.drop()
        self.batches = []

    def take(self, now_s: float) -> float | None:
        """Take what waits, if nothing is on its way; return when the oldest of it was read (monotonic)."""
        if self.batches:
            return None
        self.batches = self._waiting.take()
        self._taken_newest = (self._newest_s, self._made_unix_s)
        oldest_s, self._oldest_s = self._oldest_s, None
        if self.batches:
            self._taken_s = now_s
        return oldest_s

    def behind_s(self, now_s: float, unix_s: float) -> float:
        """Return the age of the newest event among what was taken.

        The engine's own time counts where it tells one: an agent that hung reads old events as if they were new.
        """
        received_s, made_unix_s = self._taken_newest
        return max(now_s - received_s, 0.0 if made_unix_s is None else unix_s - made_unix_s)

    def read_until_s(self, read_until_s: float) -> float:
        """Return what was read of the engine before this is published once what was taken is, given what was read."""
        return read_until_s if self._oldest_s is None else min(read_until_s, self._oldest_s)
