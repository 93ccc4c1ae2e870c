"""The prefix index: for each block hash, the set of units that hold it.

A set of units is an int with a bit for each slot. A prompt's match is a walk along its chain that keeps a mask of the
units that held every block so far: one dictionary look-up and one AND a block, for all units together. Sets are
shared: all blocks that only unit 3 holds point at one int, so a block costs its key and its dictionary entry.

A tier (GPU, CPU, disk) or a cache group is a layer of its own. A unit holds a block when, for every group it has, some
tier holds it. Nearly always there is one layer, and then the walk is over a single dictionary.

Clearing a unit must not stop the router while millions of entries are visited, so a unit's bit is not its slot but a
column that it is given: a cleared unit gets a fresh one, the old one is dead (no mask asks for it), and `sweep` takes
dead bits out a slice at a time before the column is used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GPU = 0


@dataclass(frozen=True, slots=True)
class Match:
    """How far a unit holds a chain.

    Attributes:
        blocks: Leading blocks held, on any tier.
        gpu_blocks: How many of these are on the GPU; the rest have to be loaded first.
        cpu_blocks: How many of these are on the CPU and not on the GPU.
    """

    blocks: int
    gpu_blocks: int
    cpu_blocks: int = 0


class PrefixIndex:
    """The owner of what engines hold. Single-threaded; applying a change twice changes nothing."""

    def __init__(self) -> None:
        self._layers: dict[tuple[int, int], dict[int, int]] = {}
        self._sets: dict[int, int] = {}
        self._group_columns: dict[int, int] = {}
        self._blocks_of: dict[int, int] = {}
        self._column_of: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._free_columns: list[int] = []
        self._next_column = 0
        self._dead = 0
        self._sweeping: list[tuple[dict[int, int], list[int]]] = []
        self._swept = 0
        self.version = 0
        """Grows when a unit's column changes: masks from `mask_of` are stale then."""

    def store(self, slot: int, hashes: Iterable[int], tier: int = GPU, group: int = 0) -> None:
        """A unit holds these blocks.

        Args:
            slot: The unit's number.
            hashes: Block hashes, 64 bits unsigned.
            tier: 0 GPU, 1 CPU, 2 disk.
            group: The engine's cache group.
        """
        layer = self._layers.get((tier, group))
        if layer is None:
            layer = self._layers[(tier, group)] = {}
        bit = 1 << self._column(slot)
        self._group_columns[group] = self._group_columns.get(group, 0) | bit
        shared, added = self._sets, 0
        alone = shared.setdefault(bit, bit)
        for block in hashes:
            held = layer.get(block)
            if held is None:
                layer[block] = alone
                added += 1
            elif not held & bit:
                both = held | bit
                layer[block] = shared.setdefault(both, both)
                added += 1
        self._blocks_of[slot] = self._blocks_of.get(slot, 0) + added

    def remove(self, slot: int, hashes: Iterable[int], tier: int = GPU, group: int = 0) -> None:
        """A unit no longer holds these blocks on this tier."""
        layer = self._layers.get((tier, group))
        if layer is None or slot not in self._column_of:
            return
        bit, shared, removed = 1 << self._column_of[slot], self._sets, 0
        for block in hashes:
            held = layer.get(block, 0)
            if held & bit:
                removed += 1
                rest = held ^ bit
                if rest:
                    layer[block] = shared.setdefault(rest, rest)
                else:
                    del layer[block]
        self._blocks_of[slot] = self._blocks_of.get(slot, 0) - removed

    def clear(self, slot: int) -> None:
        """A unit holds nothing. At once for every match; the memory comes back with `sweep`."""
        column = self._column_of.pop(slot, None)
        self._blocks_of.pop(slot, None)
        if column is None:
            return
        del self._slot_of[column]
        bit = 1 << column
        self._dead |= bit
        for group in self._group_columns:
            self._group_columns[group] &= ~bit
        self.version += 1

    def sweep(self, max_blocks: int = 20_000) -> bool:
        """Take dead bits out of at most this many entries.

        Returns:
            Whether dead bits are left: call again soon.
        """
        if not self._sweeping:
            if not self._dead:
                return False
            self._swept = self._dead
            self._sweeping = [(layer, list(layer)) for layer in self._layers.values()]
        live, shared = ~self._swept, self._sets
        while self._sweeping and max_blocks > 0:
            layer, blocks = self._sweeping[-1]
            part = blocks[-max_blocks:]
            del blocks[-max_blocks:]
            max_blocks -= len(part)
            for block in part:
                held = layer.get(block, 0)
                if held & self._swept:
                    rest = held & live
                    if rest:
                        layer[block] = shared.setdefault(rest, rest)
                    else:
                        del layer[block]
            if not blocks:
                self._sweeping.pop()
        if not self._sweeping:
            self._dead &= live
            self._free_columns += _bits(self._swept)
            self._sets = {held: held for held in shared if not held & self._swept}
            self._swept = 0
        return bool(self._dead)

    def mask_of(self, slots: Iterable[int]) -> int:
        """Return the mask that `match` wants for these units; good until `version` changes."""
        mask = 0
        for slot in slots:
            column = self._column_of.get(slot)
            if column is not None:
                mask |= 1 << column
        return mask

    def _column(self, slot: int) -> int:
        column = self._column_of.get(slot)
        if column is None:
            if self._free_columns:
                column = self._free_columns.pop()
            else:
                column = self._next_column
                self._next_column += 1
            self._column_of[slot] = column
            self._slot_of[column] = slot
            self.version += 1
        return column

    def blocks_of(self, slot: int) -> int:
        """Blocks that a unit holds, each tier and group counted."""
        return self._blocks_of.get(slot, 0)

    @property
    def total_blocks(self) -> int:
        """Distinct blocks, each tier and group counted; those of cleared units until they are swept."""
        return sum(map(len, self._layers.values()))

    def dump(self, slot: int) -> set[tuple[int, int, int]]:
        """Return all (hash, tier, group) of a unit: to compare with what its engine holds."""
        if slot not in self._column_of:
            return set()
        bit = 1 << self._column_of[slot]
        return {
            (block, tier, group)
            for (tier, group), layer in self._layers.items()
            for block, held in layer.items()
            if held & bit
        }

    def match(self, hashes: Sequence[int], mask: int) -> dict[int, Match]:
        """Find how far each unit holds a chain.

        Args:
            hashes: The chain, from block 0.
            mask: The units that matter, from `mask_of`.

        Returns:
            A match for each unit that holds at least block 0, by slot.
        """
        if len(self._layers) == 1 and (GPU, 0) in self._layers:
            return self._walk_one(self._layers[(GPU, 0)], hashes, mask)
        return self._walk_layers(hashes, mask)

    def _walk_one(self, layer: dict[int, int], hashes: Sequence[int], mask: int) -> dict[int, Match]:
        found: dict[int, Match] = {}
        get, depth = layer.get, 0
        for depth, block in enumerate(hashes):
            held = mask & get(block, 0)
            if held != mask:
                if depth:
                    self._end_at(found, mask ^ held, depth)
                mask = held
                if not mask:
                    return found
        if hashes:
            self._end_at(found, mask, depth + 1)
        return found

    def _end_at(self, found: dict[int, Match], columns: int, blocks: int) -> None:
        match = Match(blocks, blocks)
        for column in _bits(columns):
            found[self._slot_of[column]] = match

    def _walk_layers(self, hashes: Sequence[int], mask: int) -> dict[int, Match]:
        ended: dict[int, Match] = {}
        on_gpu: dict[int, int] = {}
        on_cpu: dict[int, int] = {}
        groups = list(self._group_columns)
        for depth in range(len(hashes) + 1):
            held = mask if depth < len(hashes) else 0
            if depth < len(hashes):
                block, gpu, cpu = hashes[depth], mask, mask
                for group in groups:
                    without = ~self._group_columns[group]
                    gpu &= self._held(block, 0, group) | without
                    cpu &= self._held(block, 0, group) | self._held(block, 1, group) | without
                    held &= self._held_anywhere(block, group) | without
                held &= self._any_group()
            if depth:
                for column in _bits(mask ^ held):
                    ended[self._slot_of[column]] = Match(depth, on_gpu.get(column, 0), on_cpu.get(column, 0))
            mask = held
            if not mask:
                break
            for column in _bits(mask & gpu):
                on_gpu[column] = on_gpu.get(column, 0) + 1
            for column in _bits(mask & cpu & ~gpu):
                on_cpu[column] = on_cpu.get(column, 0) + 1
        return ended

    def _held(self, block: int, tier: int, group: int) -> int:
        layer = self._layers.get((tier, group))
        return layer.get(block, 0) if layer else 0

    def _held_anywhere(self, block: int, group: int) -> int:
        held = 0
        for (_, layer_group), layer in self._layers.items():
            if layer_group == group:
                held |= layer.get(block, 0)
        return held

    def _any_group(self) -> int:
        some = 0
        for columns in self._group_columns.values():
            some |= columns
        return some


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
