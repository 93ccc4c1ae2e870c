"""Blocks that a placed request will leave behind, until the engine reports them.

They make a burst of equal cold prompts stay together: the second one sees what the first will have stored. They count
for cost alone, never as available: nothing is predicted to a client from them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from router.index.holders import FASTEST, Core
from router.index.sampling import PLACES, sampled

_PLACES = array("i", PLACES)


class ExpectedPrompt:
    """One placed request's blocks at one unit; `hashes` are those that are counted, `counts` where."""

    __slots__ = ("counts", "ended", "hashes", "slot")

    def __init__(self, slot: int, hashes: Sequence[int], counts: dict[int, int]) -> None:
        self.slot = slot
        self.hashes = hashes
        self.counts = counts
        self.ended = False


class ExpectedBlocks:
    """The owner of expectations. Bounded by what is in flight.

    Args:
        core: Native or pure Python.
    """

    def __init__(self, core: Core = FASTEST) -> None:
        self._core = core
        self._table = core.table()
        self._counts: dict[int, dict[int, int]] = {}
        self._ending: deque[tuple[float, ExpectedPrompt]] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._counts.values()))

    def expect(self, slot: int, chain: Sequence[int], held_blocks: int) -> ExpectedPrompt:
        """A request was placed that will leave the blocks of this chain.

        Args:
            slot: The unit's.
            chain: All of it, from block 0.
            held_blocks: How many of its first blocks the unit holds by now: of these nothing is expected.
        """
        counts = self._counts.get(slot)
        if counts is None:
            counts = self._counts[slot] = {}
        if held_blocks >= len(chain):
            return ExpectedPrompt(slot, (), counts)
        hashes = sampled(chain)[bisect_left(PLACES, held_blocks) :]
        if hashes:
            for block in hashes:
                counts[block] = counts.get(block, 0) + 1
            self._table.add(slot, hashes)
        return ExpectedPrompt(slot, hashes, counts)

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
        counts, over = prompt.counts, []
        for block in prompt.hashes:
            left = counts[block] - 1
            if left:
                counts[block] = left
            else:
                del counts[block]
                over.append(block)
        if over and self._counts.get(prompt.slot) is counts:
            self._table.discard(prompt.slot, over)

    def forget(self, slot: int) -> None:
        """A unit left, and its slot may be another's: what was expected there does not count there."""
        counts = self._counts.pop(slot, None)
        if counts:
            self._table.discard(slot, list(counts))

    def settle(self, now_s: float) -> None:
        """End what is due."""
        while self._ending and self._ending[0][0] <= now_s:
            self.end(self._ending.popleft()[1])

    def extended(self, slots: array[int], chain: Sequence[int], held_blocks: Sequence[int]) -> Sequence[int]:
        """Return how many leading blocks of a chain units will hold.

        Args:
            slots: The units', type code `i`.
            held_blocks: How many each of them holds now.
        """
        if not self._table:
            return held_blocks
        return self._core.extended(self._table, chain, _PLACES, slots, held_blocks)
