"""What the router itself sent to units that report nothing: an LRU as large as the engine's cache.

It writes into the same index as the events do, under the unit's own slot, so that placement sees one kind of match. It
knows neither generated blocks nor the engine's true evictions; trust APPROXIMATE says so.

A prompt of 100,000 tokens has thousands of blocks, so of each chain only some are kept in the index
(`router.index.sampling`), each with the blocks that followed it up to the next one. A prompt is remembered from its
first block on and forgotten from its last, so a match is nearly always found to the block; where it parts from several
remembered prompts between the same two samples it may come out short by a sixteenth.

What a unit reported before its agent went missing stays beside that as advice, since the engine may well run on: until
half a cache was sent there since, by when as much of the old is evicted. So the index holds at most one and a half
caches of it.

A unit that reports its blocks may still be distrusted for some kinds of requests (`router.fleet.vouching`): what these
leave is remembered beside what it reports, under a slot of its own (`memory_slot`). Equal beginnings give equal chains,
even wrong ones, so such requests still find each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence

from router.index.prefix_index import PrefixIndex
from router.index.sampling import SAMPLES, sampled

UNKNOWN_CACHE_BLOCKS = 32_768
"""Assumed where an engine does not say how many blocks it has: half a million tokens in blocks of 16, which is what a
GPU of 80 GB has room for beside a model of 8 billion parameters. Where it has less, a conversation still goes where its
last turn went; to assume less than it has would send it elsewhere while its blocks are there."""


def memory_slot(slot: int) -> int:
    """Return the slot of what is remembered beside a unit's own reports; no unit has it."""
    return ~slot


class _Memory:
    """What was sent to one slot.

    Attributes:
        samples: By its hash each sampled block: how many blocks it stands for, and those after it up to the next
            sample. The longest unused comes first, of one prompt the deepest.
        blocks: How many blocks all of them stand for.
    """

    __slots__ = ("blocks", "samples")

    def __init__(self) -> None:
        self.samples: OrderedDict[int, tuple[int, Sequence[int]]] = OrderedDict()
        self.blocks = 0

    @property
    def extra_blocks(self) -> int:
        """Blocks that are remembered besides the samples."""
        return self.blocks - len(self.samples)

    def add(self, chain: Sequence[int]) -> list[int]:
        """Remember a chain; return those of its samples that are new."""
        samples, blocks, new = self.samples, sampled(chain), []
        number = len(blocks) - 1
        while number >= 0 and blocks[number] not in samples:
            self._put(chain, number, blocks[number])
            new.append(blocks[number])
            number -= 1
        if number < 0:
            return new
        self._put(chain, number, blocks[number])  # the last known sample: what follows it may be more than before
        samples.move_to_end(blocks[number])
        try:
            # All before it are known, too: a long prompt has a hundred, so none is looked at by itself.
            deque(map(samples.move_to_end, reversed(blocks[:number])), maxlen=0)
        except KeyError:
            for earlier in range(number - 1, -1, -1):
                if blocks[earlier] not in samples:
                    self._put(chain, earlier, blocks[earlier])
                    new.append(blocks[earlier])
                samples.move_to_end(blocks[earlier])
        return new

    def _put(self, chain: Sequence[int], number: int, block: int) -> None:
        """Keep a sample, with what follows it in this chain."""
        after = SAMPLES[number + 1] - SAMPLES[number] - 1
        blocks = SAMPLES[number] - (SAMPLES[number - 1] if number else 0)
        if block not in self.samples:
            self.blocks += blocks
        self.samples[block] = (blocks, chain[SAMPLES[number] : SAMPLES[number] + after] if after else ())

    def forget_over(self, bound_blocks: int) -> list[int]:
        """Forget samples until no more blocks than this are left; return those forgotten."""
        forgotten = []
        while self.blocks > bound_blocks:
            block, (blocks, _) = self.samples.popitem(last=False)
            self.blocks -= blocks
            forgotten.append(block)
        return forgotten

    def continued(self, chain: Sequence[int], blocks: int) -> int:
        """Return how many blocks of a chain are remembered, of which as many are by its last sample that is."""
        known = self.samples.get(chain[blocks - 1])
        if known is None:  # reported by the engine before
            return blocks
        after = known[1]
        most = min(len(after), len(chain) - blocks)
        if not most or after[0] != chain[blocks]:
            return blocks
        # The same hash means the same blocks before it, too: where two chains part can be found by halves.
        return blocks + bisect_right(range(most), 0, key=lambda place: after[place] != chain[blocks + place])


class ApproximateMemory:
    """The owner of memories, one LRU a slot."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._memories: dict[int, _Memory] = {}
        self._advised: set[int] = set()

    def remember(self, slot: int, chain: Sequence[int], num_blocks: int | None) -> None:
        """A prompt with this chain was computed by this unit.

        Args:
            chain: All of it, from block 0.
            num_blocks: Blocks of the engine's cache, which bounds the memory.
        """
        memory = self._memories.get(slot)
        if memory is None:
            memory = self._memories[slot] = _Memory()
            if self._index.blocks_of(slot):
                self._advised.add(slot)
        new = memory.add(chain)
        self._index.store(slot, new)
        self._index.sample(slot, memory)
        bound = num_blocks or UNKNOWN_CACHE_BLOCKS
        if memory.blocks > bound:
            self._index.remove(slot, memory.forget_over(bound))
        if slot in self._advised and memory.blocks > bound // 2 and self._index.blocks_of(slot) > bound:
            self._advised.remove(slot)
            self._index.clear(slot)
            self._index.store(slot, memory.samples)
            self._index.sample(slot, memory)

    def drop(self, slot: int) -> None:
        """The unit left or reports its blocks itself: what the index holds for it is not touched again."""
        if self._memories.pop(slot, None) is not None:
            self._index.sample(slot, None)
        self._advised.discard(slot)

    def forget(self, slot: int) -> None:
        """Nothing that is remembered under this slot counts any more."""
        self._advised.discard(slot)
        if self._memories.pop(slot, None) is not None:
            self._index.clear(slot)
