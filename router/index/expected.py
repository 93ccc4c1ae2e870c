"""Blocks that a placed request will leave behind, until the engine reports them.

They make a burst of equal cold prompts stay together: the second one sees what the first will have stored. They count
for cost alone, never as available: nothing is predicted to a client from them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from router.index.sampling import PLACES, samples_in


class ExpectedPrompt:
    """One placed request's blocks at one unit; `hashes` are those that are counted."""

    __slots__ = ("ended", "hashes", "unit")

    def __init__(self, unit: int, hashes: Sequence[int]) -> None:
        self.unit = unit
        self.hashes = hashes
        self.ended = False


class ExpectedBlocks:
    """The owner of expectations. Bounded by what is in flight."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[int, int]] = {}
        self._ending: deque[tuple[float, ExpectedPrompt]] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._counts.values()))

    def expect(self, unit: int, chain: Sequence[int], held_blocks: int) -> ExpectedPrompt:
        """A request was placed that will leave the blocks of this chain.

        Args:
            unit: The unit's serial number, which no other unit ever gets (a slot may be used again).
            chain: All of it, from block 0.
            held_blocks: How many of its first blocks the unit holds by now: of these nothing is expected.
        """
        hashes = [chain[place] for place in PLACES[bisect_left(PLACES, held_blocks) : samples_in(len(chain))]]
        if hashes:
            counts = self._counts.setdefault(unit, {})
            for block in hashes:
                counts[block] = counts.get(block, 0) + 1
        return ExpectedPrompt(unit, hashes)

    def end_at(self, prompt: ExpectedPrompt, at_s: float) -> None:
        """By then the engine's events have told the truth. Calls come with growing times, as the clock does."""
        self._ending.append((at_s, prompt))

    def end(self, prompt: ExpectedPrompt) -> None:
        """Nothing more is expected of it; only the first call counts."""
        if prompt.ended:
            return
        prompt.ended = True
        if not prompt.hashes:
            return
        counts = self._counts[prompt.unit]
        for block in prompt.hashes:
            left = counts[block] - 1
            if left:
                counts[block] = left
            else:
                del counts[block]
        if not counts:
            del self._counts[prompt.unit]

    def settle(self, now_s: float) -> None:
        """End what is due."""
        while self._ending and self._ending[0][0] <= now_s:
            self.end(self._ending.popleft()[1])

    def extend(self, unit: int, chain: Sequence[int], held_blocks: int) -> int:
        """Return how many leading blocks of a chain a unit will hold, when it holds `held_blocks` now."""
        counts = self._counts.get(unit)
        if counts is None:
            return held_blocks
        place, depth = bisect_left(PLACES, held_blocks), held_blocks
        end = len(chain)
        while (at := PLACES[place]) < end and chain[at] in counts:
            depth = at + 1
            place += 1
        return depth
