"""Paged blocks: who holds them, which content they cache, and which goes next.

Three ideas make the cache:

1. A block is free when nobody holds it, and a free block still caches its content. The free list is an LRU: blocks are
   taken from its front, and a request's blocks come back at its end, deepest first, so that the deepest is evicted
   first and a prefix outlives its tails. Blocks that cache nothing go to the front: they are reused before anything is
   evicted.
2. A key can name several blocks. Equal blocks of concurrent requests are not merged (a request's block table must not
   change under it); a lookup takes the first of them, and each copy is announced and evicted by itself.
3. Block 0 is a placeholder that is never handed out, so an engine with N blocks serves N - 1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from replica.simengine.core.events import BlockKey, BlockRemoved, CacheCleared, CacheEvent


class BlockPool:
    """All blocks of one engine (one data-parallel rank).

    Attributes:
        num_blocks: As the engine reports it, placeholder included; at least 2.
        references: Holders of each block, by its number.
        keys: What each block caches, by its number; None for nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (block 0 is a placeholder), not {num_blocks}")
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self.keys: list[BlockKey | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._found: dict[BlockKey, int | dict[int, None]] = {}
        self._events: list[CacheEvent] = []

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold."""
        return self.num_blocks - 1

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds (they may cache content)."""
        return len(self._free)

    @property
    def usage_share(self) -> float:
        """Share of the usable blocks that are held, 0 to 1."""
        return 1.0 - len(self._free) / self.usable_blocks

    @property
    def cached_keys(self) -> int:
        """Distinct contents that a lookup would find."""
        return len(self._found)

    def copies(self) -> dict[BlockKey, int]:
        """Return every content that a lookup would find, with the number of its copies."""
        return {key: 1 if isinstance(found, int) else len(found) for key, found in self._found.items()}

    def free_list(self) -> list[int]:
        """Return the free blocks, next to be taken first."""
        return list(self._free)

    def lookup(self, keys: Sequence[BlockKey], limit: int) -> list[int]:
        """Return the blocks that cache the longest leading part of `keys[:limit]`. Nothing is held by it."""
        blocks: list[int] = []
        for index in range(min(limit, len(keys))):
            found = self._found.get(keys[index])
            if found is None:
                break
            blocks.append(found if isinstance(found, int) else next(iter(found)))
        return blocks

    def unreferenced(self, blocks: Iterable[int]) -> int:
        """Count those of `blocks` that nobody holds: holding them takes them from the free list."""
        references = self.references
        return sum(references[block] == 0 for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to cached blocks."""
        for block in blocks:
            if self.references[block] == 0:
                del self._free[block]
            self.references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take blocks from the front of the free list, evicting what they cached.

        Raises:
            ValueError: There are fewer free blocks. Nothing was taken.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked, {len(self._free)} free")
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            key = self.keys[block]
            if key is not None:
                self._forget(key, block)
                self._events.append(BlockRemoved(key))
            self.references[block] = 1
            taken.append(block)
        return taken

    def store(self, blocks: Sequence[int], keys: Sequence[BlockKey], event: CacheEvent | None) -> None:
        """Make full blocks findable, and note the event that says so."""
        for block, key in zip(blocks, keys, strict=True):
            self.keys[block] = key
            found = self._found.get(key)
            if found is None:
                self._found[key] = block
            elif isinstance(found, int):
                self._found[key] = {found: None, block: None}
            else:
                found[block] = None
        if event is not None:
            self._events.append(event)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a holder from a request's blocks, given in the order of its tokens."""
        empty: list[int] = []
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                if self.keys[block] is None:
                    empty.append(block)
                else:
                    self._free[block] = None
        for block in reversed(empty):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget all content. Returns False, and does nothing, while a block is held."""
        if len(self._free) != self.usable_blocks:
            return False
        self._found.clear()
        self.keys = [None] * self.num_blocks
        self._events.append(CacheCleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _forget(self, key: BlockKey, block: int) -> None:
        self.keys[block] = None
        found = self._found[key]
        if isinstance(found, int):
            del self._found[key]
            return
        del found[block]
        if not found:
            del self._found[key]
