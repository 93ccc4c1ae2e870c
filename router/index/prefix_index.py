"""The prefix index: for each block hash, the set of units that hold it.

A set of units is an int with a bit for each slot. A prompt's match is a walk along its chain that keeps a mask of the
units that held every block so far: one dictionary look-up and one AND a block, for all units together. Sets are
shared: all blocks that only unit 3 holds point at one int, so a block costs its key and its dictionary entry.

A tier (GPU, CPU, disk) or a cache group is a layer of its own. A unit holds a block when, for every group it has, some
tier holds it. Nearly always there is one layer, and then the walk is over a single dictionary.

Of what the router itself remembers for a unit (`router.index.approximate`) only samples are stored here: such units
are walked from sample to sample, and the memory tells how far the last one goes on.

Clearing a unit must not stop the router while millions of entries are visited, so a unit's bit is not its slot but a
column that it is given: a cleared unit gets a fresh one, the old one is dead (no mask asks for it), and `sweep` takes
dead bits out a slice at a time before the column is used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from router.index.matches import CPU, DISK, GPU, Holds, Match, SampledMemory, strided_match
from router.index.sampling import PLACES, SAMPLES, samples_in

__all__ = ["CPU", "DISK", "GPU", "Match", "PrefixIndex"]
MAX_GROUPS = 32
"""Cache groups that are told apart. No engine has nearly as many; a unit that claims more matches nothing."""
TOO_MANY_GROUPS = -1
MAX_SHARED_SETS = 65_536
"""Sets of units kept for sharing. Past that sharing begins anew: a table of all that ever were would only grow."""


class PrefixIndex:
    """The owner of what engines hold. Single-threaded; applying a change twice changes nothing."""

    def __init__(self) -> None:
        self._layers: dict[tuple[int, int], dict[int, int]] = {}
        self._sets: dict[int, int] = {}
        self._group_columns: dict[int, int] = {}
        self._blocks_of: dict[int, int] = {}
        self._column_of: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._strides: dict[int, dict[int, int]] = {}
        self._sampled: dict[int, SampledMemory] = {}
        self._sampled_columns = 0
        self._free_columns: list[int] = []
        self._next_column = 0
        self._live = 0
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
            tier: 0 GPU, 1 CPU, 2 disk; what is further away counts as disk.
            group: The engine's cache group.
        """
        tier = min(tier, DISK)
        bit = 1 << self._column(slot)
        if group not in self._group_columns and len(self._group_columns) >= MAX_GROUPS:
            # Nothing is ever stored under this group, so a unit that has it never holds all its groups.
            self._group_columns[TOO_MANY_GROUPS] = self._group_columns.get(TOO_MANY_GROUPS, 0) | bit
            return
        self._group_columns[group] = self._group_columns.get(group, 0) | bit
        layer = self._layers.get((tier, group))
        if layer is None:
            layer = self._layers[(tier, group)] = {}
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
        if len(shared) > MAX_SHARED_SETS:
            shared.clear()

    def remove(self, slot: int, hashes: Iterable[int], tier: int = GPU, group: int = 0) -> None:
        """A unit no longer holds these blocks on this tier."""
        tier = min(tier, DISK)
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
        if not layer:
            del self._layers[(tier, group)]
        if len(shared) > MAX_SHARED_SETS:
            shared.clear()

    def sample(self, slot: int, memory: SampledMemory | None) -> None:
        """Of a unit only samples are stored, and this memory knows what is between; None: all are stored again."""
        column = self._column_of.get(slot)
        if memory is None:
            self._sampled.pop(slot, None)
            if column is not None:
                self._sampled_columns &= ~(1 << column)
        elif column is not None:
            self._sampled[slot] = memory
            self._sampled_columns |= 1 << column

    def set_strides(self, slot: int, strides: Iterable[tuple[int, int]]) -> None:
        """Some of a unit's cache groups have larger blocks than those that a chain names.

        Args:
            strides: By group how many blocks of a chain make one of its own; a group that is not named has them alike.
        """
        given = {group: stride for group, stride in strides if stride > 1}
        if given:
            self._strides[slot] = given
        else:
            self._strides.pop(slot, None)

    def clear(self, slot: int) -> None:
        """A unit holds nothing. At once for every match; the memory comes back with `sweep`."""
        self.sample(slot, None)
        column = self._column_of.pop(slot, None)
        self._blocks_of.pop(slot, None)
        if column is None:
            return
        del self._slot_of[column]
        bit = 1 << column
        self._live &= ~bit
        self._dead |= bit
        for group in list(self._group_columns):
            self._group_columns[group] &= ~bit
            if not self._group_columns[group]:
                del self._group_columns[group]
        self.version += 1

    def sweep(self, max_blocks: int = 20_000) -> bool:
        """Take dead bits out of at most this many entries.

        The keys are listed when a sweep begins (about 10 ms a million): the one step that is not sliced.

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
            self._layers = {key: layer for key, layer in self._layers.items() if layer}
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
            self._live |= 1 << column
            self.version += 1
        return column

    def blocks_of(self, slot: int) -> int:
        """Blocks that a unit holds, each tier and group counted."""
        blocks = self._blocks_of.get(slot, 0)
        memory = self._sampled.get(slot)
        return blocks if memory is None else blocks + memory.extra_blocks

    def holds(self, slot: int, block: int) -> bool:
        """Whether a unit holds a block on any tier, in any group."""
        column = self._column_of.get(slot)
        return column is not None and any(layer.get(block, 0) >> column & 1 for layer in self._layers.values())

    def leading(self, slot: int, hashes: Sequence[int]) -> int:
        """Return how many leading blocks of a chain a unit holds."""
        match = self.match(hashes, self.mask_of([slot])).get(slot)
        return match.blocks if match is not None else 0

    @property
    def total_blocks(self) -> int:
        """Distinct blocks kept, each tier and group counted; those of cleared units until they are swept."""
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

    def walk(self, slot: int, slice_blocks: int = 20_000) -> Iterator[list[tuple[int, int, int]]]:
        """Yield what `dump` returns in slices: so many entries of the index are looked at for each.

        Changes between slices are allowed and may be missed; it ends early when the unit is cleared meanwhile. The keys
        are listed when it begins, as in `sweep`.
        """
        column = self._column_of.get(slot)
        if column is None:
            return
        for (tier, group), layer in list(self._layers.items()):
            blocks = list(layer)
            for start in range(0, len(blocks), slice_blocks):
                if self._column_of.get(slot) != column:
                    return
                part = blocks[start : start + slice_blocks]
                yield [(block, tier, group) for block in part if layer.get(block, 0) >> column & 1]

    def match(self, hashes: Sequence[int], mask: int) -> dict[int, Match]:
        """Find how far each unit holds a chain.

        Args:
            hashes: The chain, from block 0.
            mask: The units that matter, from `mask_of`.

        Returns:
            A match for each unit that holds at least block 0, by slot.
        """
        mask &= self._live
        if not self._strides:
            return self._match(hashes, mask)
        mask, strided = self._without_strided(mask)
        found = self._match(hashes, mask) if mask else {}
        for slot in strided:
            match = strided_match(hashes, self._holds_of(slot), self._strides[slot])
            if match.blocks:
                found[slot] = match
        return found

    def _match(self, hashes: Sequence[int], mask: int) -> dict[int, Match]:
        sampled = mask & self._sampled_columns
        if not sampled:
            return self._walk(hashes, mask)
        found = self._walk(hashes, mask ^ sampled) if mask != sampled else {}
        for slot, match in self._walk([hashes[place] for place in PLACES[: samples_in(len(hashes))]], sampled).items():
            last = SAMPLES[match.blocks - 1]
            blocks = self._sampled[slot].continued(hashes, last)
            if match.gpu_blocks == match.blocks:
                found[slot] = Match(blocks, blocks)
            else:  # what an engine reported before its agent went missing
                share = last / match.blocks
                found[slot] = Match(blocks, int(match.gpu_blocks * share), int(match.cpu_blocks * share))
        return found

    def _without_strided(self, mask: int) -> tuple[int, list[int]]:
        """Return a mask without the units whose groups have blocks of several sizes, and these."""
        strided = []
        for slot in self._strides:
            column = self._column_of.get(slot)
            if column is not None and mask >> column & 1 and slot not in self._sampled:
                mask ^= 1 << column
                strided.append(slot)
        return mask, strided

    def _holds_of(self, slot: int) -> dict[int, Holds]:
        """Return for each group of a unit what tells on which tier it holds a block."""
        column = self._column_of[slot]

        def holds(group: int) -> Holds:
            layers = [self._layers.get((tier, group), {}) for tier in (GPU, CPU, DISK)]
            tiers = list(enumerate(layers))
            return lambda block: next((tier for tier, layer in tiers if layer.get(block, 0) >> column & 1), None)

        return {group: holds(group) for group, columns in self._group_columns.items() if columns >> column & 1}

    def _walk(self, hashes: Sequence[int], mask: int) -> dict[int, Match]:
        if len(self._layers) == 1 and (GPU, 0) in self._layers and len(self._group_columns) == 1:
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
        groups: list[tuple[int, dict[int, int], dict[int, int], dict[int, int]]] = []
        grouped = 0
        for group, columns in self._group_columns.items():
            if columns & mask:
                gpu, cpu, disk = (self._layers.get((tier, group), {}) for tier in (GPU, CPU, DISK))
                groups.append((~columns, gpu, cpu, disk))
                grouped |= columns
        mask &= grouped
        found: dict[int, Match] = {}
        gpu_blocks: dict[int, int] = {}
        cpu_blocks: dict[int, int] = {}
        depth = 0
        for depth, block in enumerate(hashes):
            held = on_gpu = on_cpu = mask
            for without, gpu, cpu, disk in groups:
                near = gpu.get(block, 0)
                on_gpu &= near | without
                near |= cpu.get(block, 0)
                on_cpu &= near | without
                held &= near | disk.get(block, 0) | without
            if held != mask:
                self._end_each(found, mask ^ held, depth, gpu_blocks, cpu_blocks)
                mask = held
                if not mask:
                    return found
            for column in _bits(mask & on_gpu):
                gpu_blocks[column] = gpu_blocks.get(column, 0) + 1
            for column in _bits(mask & on_cpu & ~on_gpu):
                cpu_blocks[column] = cpu_blocks.get(column, 0) + 1
        if hashes:
            self._end_each(found, mask, depth + 1, gpu_blocks, cpu_blocks)
        return found

    def _end_each(
        self, found: dict[int, Match], columns: int, blocks: int, gpu: dict[int, int], cpu: dict[int, int]
    ) -> None:
        if blocks:
            for column in _bits(columns):
                found[self._slot_of[column]] = Match(blocks, gpu.get(column, 0), cpu.get(column, 0))


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
