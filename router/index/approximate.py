"""What the router itself sent to units that report nothing: an LRU as large as the engine's cache.

It writes into the same index as the events do, under the unit's own slot, so that placement sees one kind of match. It
knows neither generated blocks nor the engine's true evictions; trust APPROXIMATE says so.

What a unit reported before its agent went missing stays beside that as advice, since the engine may well run on: until
half a cache was sent there since, by when as much of the old is evicted. So the index holds at most one and a half
caches of it.

A unit that reports its blocks may still be distrusted for some kinds of requests (`router.fleet.vouching`): what these
leave is remembered beside what it reports, under a slot of its own (`memory_slot`). Equal beginnings give equal chains,
even wrong ones, so such requests still find each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from router.index.prefix_index import PrefixIndex

UNKNOWN_CACHE_BLOCKS = 8_192
"""Assumed where an engine does not say how many blocks it has."""


def memory_slot(slot: int) -> int:
    """Return the slot of what is remembered beside a unit's own reports; no unit has it."""
    return ~slot


class ApproximateMemory:
    """The owner of memories, one LRU a slot."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._memories: dict[int, OrderedDict[int, None]] = {}
        self._advised: set[int] = set()

    def remember(self, slot: int, hashes: Sequence[int], num_blocks: int | None) -> None:
        """A prompt with this chain was computed by this unit.

        The deepest block is touched first, so that it is the first to be forgotten: an engine evicts in that order.

        Args:
            num_blocks: Blocks of the engine's cache, which bounds the memory.
        """
        memory = self._memories.get(slot)
        if memory is None:
            memory = self._memories[slot] = OrderedDict()
            if self._index.blocks_of(slot):
                self._advised.add(slot)
        new = []
        for block in reversed(hashes):
            if block in memory:
                memory.move_to_end(block)
            else:
                memory[block] = None
                new.append(block)
        self._index.store(slot, new)
        bound = num_blocks or UNKNOWN_CACHE_BLOCKS
        over = len(memory) - bound
        if over > 0:
            self._index.remove(slot, [memory.popitem(last=False)[0] for _ in range(over)])
        if slot in self._advised and len(memory) > bound // 2 and self._index.blocks_of(slot) > bound:
            self._advised.remove(slot)
            self._index.clear(slot)
            self._index.store(slot, memory)

    def drop(self, slot: int) -> None:
        """The unit left or reports its blocks itself: the index was cleared for it and is not touched again."""
        self._memories.pop(slot, None)
        self._advised.discard(slot)

    def forget(self, slot: int) -> None:
        """Nothing that is remembered under this slot counts any more."""
        self._advised.discard(slot)
        if self._memories.pop(slot, None) is not None:
            self._index.clear(slot)
