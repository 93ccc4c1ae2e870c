"""Blocks that a placed request will leave behind, until the engine reports them.

They make a burst of equal cold prompts stay together: the second one sees what the first will have stored. They count
for cost alone, never as available: nothing is predicted to a client from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class ExpectedPrompt:
    """One placed request's blocks at one unit."""

    __slots__ = ("ended", "hashes", "unit")

    def __init__(self, unit: int, hashes: Sequence[int]) -> None:
        self.unit = unit
        self.hashes = hashes
        self.ended = False


class ExpectedBlocks:
    """The owner of expectations. Bounded by what is in flight."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}
        self._ending: deque[tuple[float, ExpectedPrompt]] = deque()

    def __len__(self) -> int:
        return len(self._counts)

    def expect(self, unit: int, hashes: Sequence[int]) -> ExpectedPrompt:
        """A request was placed that will leave these blocks.

        Args:
            unit: The unit's serial number, which no other unit ever gets (a slot may be used again).
            hashes: The part of its chain that the unit does not hold yet.
        """
        for block in hashes:
            key = (unit, block)
            self._counts[key] = self._counts.get(key, 0) + 1
        return ExpectedPrompt(unit, hashes)

    def end_at(self, prompt: ExpectedPrompt, at_s: float) -> None:
        """By then the engine's events have told the truth. Calls come with growing times, as the clock does."""
        self._ending.append((at_s, prompt))

    def end(self, prompt: ExpectedPrompt) -> None:
        """Nothing more is expected of it; only the first call counts."""
        if prompt.ended:
            return
        prompt.ended = True
        for block in prompt.hashes:
            key = (prompt.unit, block)
            left = self._counts[key] - 1
            if left:
                self._counts[key] = left
            else:
                del self._counts[key]

    def settle(self, now_s: float) -> None:
        """End what is due."""
        while self._ending and self._ending[0][0] <= now_s:
            self.end(self._ending.popleft()[1])

    def extend(self, unit: int, hashes: Sequence[int], held_blocks: int) -> int:
        """Return how many leading blocks a unit will hold, when it holds `held_blocks` now."""
        counts, depth = self._counts, held_blocks
        while depth < len(hashes) and (unit, hashes[depth]) in counts:
            depth += 1
        return depth
