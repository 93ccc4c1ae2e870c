"""The prefix index: which unit holds which block, and how far each unit holds a prompt's chain.

A tier (GPU, CPU, disk) or a cache group is a layer of its own (`router.index.holders`). A unit holds a block when, for
every group it has, some tier holds it. Nearly always there is one layer, and then the walk is over a single table.

Of cache groups that keep the ends of prefixes alone (sliding windows, Mamba states) the blocks are kept apart, and a
match is cut to where they let it end.

Of what the router itself remembers for a unit (`router.index.approximate`) only samples are stored here: such units
are walked from sample to sample, and the memory tells how far the last one goes on.

Clearing a unit must not stop the router while millions of entries are visited, so a unit's place in sets is not its
slot but a column that it is given: a cleared unit gets a fresh one, the old one is dead (no view asks for it), and
`sweep` takes dead columns out a slice at a time before they are used again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain as chained

from router.index.holders import FASTEST, NOBODY, Core, Group, HolderTable, bits, bits_as_bytes
from router.index.matches import CPU, DISK, GPU, Holds, Match, SampledMemory, Tail, ended, strided_match
from router.index.sampling import DENSE_BLOCKS, SAMPLES, sampled

__all__ = ["CPU", "DISK", "GPU", "Match", "PrefixIndex", "View"]
MAX_GROUPS = 32
"""Cache groups that are told apart. No engine has nearly as many; a unit that claims more matches nothing."""
TOO_MANY_GROUPS = -1
Depths = tuple[list[int], list[int] | None, list[int] | None]
"""For each slot of a view the leading blocks that it holds, and how many of them have to be loaded from the CPU and
from disk; the latter two are None where that is none of any."""


@dataclass(slots=True, eq=False)
class View:
    """Units that are asked about again and again, in an order; `PrefixIndex.view` makes it and keeps it up to date.

    Attributes:
        slots: As given.
        columns: Where each is, `NOBODY` for those that hold nothing and for those that are walked apart:
        sampled: places of units of which only samples are stored;
        strided: places of units whose groups have blocks of several sizes;
        tailed: places of other units some of whose groups keep the ends of prefixes alone;
        is_sampled: of all units that hold anything only samples are stored.
    """

    slots: Sequence[int]
    version: int = -1
    columns: array[int] = field(default_factory=lambda: array("i"))
    sampled: list[int] = field(default_factory=list)
    strided: list[int] = field(default_factory=list)
    tailed: list[int] = field(default_factory=list)
    sampled_columns: array[int] = field(default_factory=lambda: array("i"))
    is_sampled: bool = False


class PrefixIndex:
    """The owner of what engines hold. Single-threaded; applying a change twice changes nothing.

    Args:
        core: Native or pure Python.
    """

    def __init__(self, core: Core = FASTEST) -> None:
        self._core = core
        self._layers: dict[tuple[int, int], HolderTable] = {}
        self._group_columns: dict[int, int] = {}
        self._groups: tuple[Group, ...] | None = None
        self._blocks_of: dict[int, int] = {}
        self._column_of: dict[int, int] = {}
        self._strides: dict[int, dict[int, int]] = {}
        self._tails: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self._ends: PrefixIndex | None = None
        self._sampled: dict[int, SampledMemory] = {}
        self._free_columns: list[int] = []
        self._next_column = 0
        self._dead = 0
        self._swept = 0
        self._sweeping: Iterator[int] = iter(())
        self._version = 0

    def store(self, slot: int, hashes: Iterable[int], tier: int = GPU, group: int = 0) -> None:
        """A unit holds these blocks.

        Args:
            slot: The unit's number.
            hashes: Block hashes, 64 bits unsigned.
            tier: 0 GPU, 1 CPU, 2 disk; what is further away counts as disk.
            group: The engine's cache group.
        """
        column = self._column_of.get(slot)
        if column is None:
            column = self._take_column(slot)
        columns = self._group_columns.get(group, 0)
        if not columns >> column & 1:
            if not columns and len(self._group_columns) >= MAX_GROUPS:
                # Nothing is ever stored under this group, so a unit that has it never holds all its groups.
                group, hashes = TOO_MANY_GROUPS, ()
            self._group_columns[group] = self._group_columns.get(group, 0) | 1 << column
            self._groups = None
            if group == TOO_MANY_GROUPS:
                return
        layer = self._layers.get((min(tier, DISK), group))
        if layer is None:
            layer = self._layers[(min(tier, DISK), group)] = self._core.table()
            self._groups = None
        self._blocks_of[slot] = self._blocks_of.get(slot, 0) + layer.add(column, hashes)

    def store_tail(self, slot: int, hashes: Iterable[int], tier: int = GPU, group: int = 0) -> None:
        """A unit holds these blocks in a cache group that keeps the ends of prefixes alone; arguments as `store`."""
        if self._ends is None:
            self._ends = PrefixIndex(self._core)
        self._ends.store(slot, hashes, tier, group)

    def remove(self, slot: int, hashes: Iterable[int], tier: int = GPU, group: int = 0) -> None:
        """A unit no longer holds these blocks on this tier."""
        if self._ends is not None:
            hashes = tuple(hashes)
            self._ends.remove(slot, hashes, tier, group)
        tier = min(tier, DISK)
        layer, column = self._layers.get((tier, group)), self._column_of.get(slot)
        if layer is None or column is None:
            return
        self._blocks_of[slot] = self._blocks_of.get(slot, 0) - layer.discard(column, hashes)
        if not layer:
            del self._layers[(tier, group)]
            self._groups = None

    def sample(self, slot: int, memory: SampledMemory | None) -> None:
        """Of a unit only samples are stored, and this memory knows what is between; None: all are stored again."""
        if self._sampled.get(slot) is memory or (memory is not None and slot not in self._column_of):
            return
        if memory is None:
            del self._sampled[slot]
        else:
            self._sampled[slot] = memory
        self._version += 1

    def set_strides(self, slot: int, strides: Iterable[tuple[int, int]]) -> None:
        """Some of a unit's cache groups have larger blocks than those that a chain names.

        Args:
            strides: By group how many blocks of a chain make one of its own; a group that is not named has them alike.
        """
        given = {group: stride for group, stride in strides if stride > 1}
        if given == self._strides.get(slot, {}):
            return
        if given:
            self._strides[slot] = given
        else:
            del self._strides[slot]
        self._version += 1

    def set_tails(self, slot: int, tails: Iterable[tuple[int, int, int]]) -> None:
        """Some of a unit's cache groups keep the ends of prefixes alone: a match must end where they hold one.

        Args:
            tails: The group, how many blocks of a chain make one of its, and how many of these must be held before an
                end. A group with such blocks that is not named does not count.
        """
        given = tuple(tails)
        if given == self._tails.get(slot, ()):
            return
        if given:
            self._tails[slot] = given
        else:
            del self._tails[slot]
        self._version += 1

    def clear(self, slot: int) -> None:
        """A unit holds nothing. At once for every match; the memory comes back with `sweep`."""
        if self._ends is not None:
            self._ends.clear(slot)
        self.sample(slot, None)
        column = self._column_of.pop(slot, None)
        self._blocks_of.pop(slot, None)
        if column is None:
            return
        bit = 1 << column
        self._dead |= bit
        for group in list(self._group_columns):
            self._group_columns[group] &= ~bit
            if not self._group_columns[group]:
                del self._group_columns[group]
        self._groups = None
        self._version += 1

    def sweep(self, max_blocks: int = 20_000) -> bool:
        """Take dead columns out of about this many entries.

        Returns:
            Whether dead columns are left: call again soon.
        """
        return self._sweep(max_blocks) or (self._ends is not None and self._ends.sweep(max_blocks))

    def _sweep(self, max_blocks: int) -> bool:
        if not self._swept:
            if not self._dead:
                return False
            self._swept = self._dead
            slices = [layer.sweep(self._swept, max_blocks) for layer in self._layers.values()]
            self._sweeping = chained.from_iterable(slices)
        for looked_at in self._sweeping:
            max_blocks -= looked_at
            if max_blocks <= 0:
                return True
        self._layers = {key: layer for key, layer in self._layers.items() if layer}
        self._groups = None
        self._dead &= ~self._swept
        self._free_columns += bits(self._swept)
        self._swept = 0
        return bool(self._dead)

    def _take_column(self, slot: int) -> int:
        if self._free_columns:
            column = self._free_columns.pop()
        else:
            column = self._next_column
            self._next_column += 1
        self._column_of[slot] = column
        self._version += 1
        return column

    def blocks_of(self, slot: int) -> int:
        """Blocks that a unit holds, each tier and group counted."""
        blocks = self._blocks_of.get(slot, 0) + (0 if self._ends is None else self._ends.blocks_of(slot))
        memory = self._sampled.get(slot)
        return blocks if memory is None else blocks + memory.extra_blocks

    def holds(self, slot: int, block: int) -> bool:
        """Whether a unit holds a block on any tier, in any group."""
        column = self._column_of.get(slot)
        if column is None:
            return False
        for layer in self._layers.values():  # noqa: SIM110  # asked for each request, and `any` makes a generator
            if layer.holds(column, block):
                return True
        return False

    def leading(self, slot: int, hashes: Sequence[int]) -> int:
        """Return how many leading blocks of a chain a unit holds."""
        return self.depths(hashes, self.view([slot]))[0][0]

    @property
    def total_blocks(self) -> int:
        """Distinct blocks kept, each tier and group counted; those of cleared units until they are swept."""
        return sum(map(len, self._layers.values())) + (0 if self._ends is None else self._ends.total_blocks)

    def dump(self, slot: int) -> set[tuple[int, int, int]]:
        """Return all (hash, tier, group) of a unit: to compare with what its engine holds."""
        return {entry for part in self.walk(slot) for entry in part}

    def walk(self, slot: int, slice_blocks: int = 20_000) -> Iterator[list[tuple[int, int, int]]]:
        """Yield all (hash, tier, group) of a unit in slices: about so many entries of the index are looked at for each.

        Changes between slices are allowed and may be missed; it ends early when the unit is cleared meanwhile.
        """
        if self._ends is not None:
            yield from self._ends.walk(slot, slice_blocks)
        column = self._column_of.get(slot)
        if column is None:
            return
        for (tier, group), layer in list(self._layers.items()):
            for part in layer.held_by(column, slice_blocks):
                yield [(block, tier, group) for block in part]
                if self._column_of.get(slot) != column:
                    return

    def view(self, slots: Sequence[int]) -> View:
        """Return a view of these units for `depths`, good for as long as they are asked about."""
        view = View(slots)
        self._renew(view)
        return view

    def _renew(self, view: View) -> None:
        view.version, view.sampled, view.strided, view.tailed = self._version, [], [], []
        view.columns = array("i", [self._column_of.get(slot, NOBODY) for slot in view.slots])
        for place, slot in enumerate(view.slots):
            if slot in self._sampled:
                view.sampled.append(place)
            elif slot in self._strides and view.columns[place] != NOBODY:
                view.strided.append(place)
            else:
                if slot in self._tails:
                    view.tailed.append(place)
                continue
            view.columns[place] = NOBODY
        view.sampled_columns = array("i", [self._column_of[view.slots[place]] for place in view.sampled])
        view.is_sampled = bool(view.sampled) and view.columns.count(NOBODY) == len(view.columns) and not view.strided

    def match(self, hashes: Sequence[int], slots: Sequence[int]) -> dict[int, Match]:
        """Return a match for each of these units that holds at least block 0 of a chain, by slot."""
        blocks, cpu, disk = self.depths(hashes, self.view(slots))
        cpu, disk = cpu or [0] * len(slots), disk or [0] * len(slots)
        return {
            slot: Match(held, held - on_cpu - on_disk, on_cpu)
            for slot, held, on_cpu, on_disk in zip(slots, blocks, cpu, disk, strict=True)
            if held
        }

    def depths(self, hashes: Sequence[int], view: View) -> Depths:
        """Find how far each unit of a view holds a chain.

        Args:
            hashes: The chain, from block 0.
        """
        if view.version != self._version:
            self._renew(view)
        if self._groups is None:
            self._groups = self._group_tables()
        if view.is_sampled:
            blocks = self._sampled_depths(hashes, view)
            if blocks is not None:
                return blocks, None, None
        depths = self._core.walk(self._groups, hashes, view.columns)
        if not view.sampled and not view.strided and not view.tailed:
            return depths
        blocks, cpu, disk = depths
        cpu, disk = cpu or [0] * len(blocks), disk or [0] * len(blocks)
        apart = self._sampled_matches(hashes, view) if view.sampled else []
        for place in view.strided:
            slot = view.slots[place]
            tails = self._tails_of(slot)
            apart.append((place, strided_match(hashes, self._holds_of(slot), self._strides[slot], tails)))
        for place in view.tailed:
            match = Match(blocks[place], blocks[place] - cpu[place] - disk[place], cpu[place])
            apart.append((place, ended(hashes, match, self._tails_of(view.slots[place]))))
        for place, match in apart:
            blocks[place], cpu[place] = match.blocks, match.cpu_blocks
            disk[place] = match.blocks - match.gpu_blocks - match.cpu_blocks
        return blocks, cpu, disk

    def _sampled_depths(self, hashes: Sequence[int], view: View) -> list[int] | None:
        """Find how far each unit holds a chain where samples alone are stored; None where some are not on the GPU."""
        held, cpu, disk = self._core.walk(self._groups or (), sampled(hashes), view.sampled_columns)
        if cpu is not None or disk is not None:
            return None
        if len(hashes) < DENSE_BLOCKS and len(held) == len(view.columns):
            return held
        blocks = [0] * len(view.columns)
        for place, many in zip(view.sampled, held, strict=True):
            if many < DENSE_BLOCKS:  # nothing is left out between these
                blocks[place] = many
            else:
                blocks[place] = self._sampled[view.slots[place]].continued(hashes, SAMPLES[many - 1])
        return blocks

    def _sampled_matches(self, hashes: Sequence[int], view: View) -> list[tuple[int, Match]]:
        held, cpu, disk = self._core.walk(self._groups or (), sampled(hashes), view.sampled_columns)
        found = []
        for number, (place, many) in enumerate(zip(view.sampled, held, strict=True)):
            if not many:
                continue
            last = SAMPLES[many - 1]
            blocks = self._sampled[view.slots[place]].continued(hashes, last)
            on_cpu, on_disk = cpu[number] if cpu else 0, disk[number] if disk else 0
            if not on_cpu and not on_disk:
                found.append((place, Match(blocks, blocks)))
            else:  # what an engine reported before its agent went missing
                share = last / many
                gpu_blocks = int((many - on_cpu - on_disk) * share)
                found.append((place, Match(blocks, gpu_blocks, int(on_cpu * share))))
        return found

    def _group_tables(self) -> tuple[Group, ...]:
        is_alone = len(self._group_columns) == 1
        layer = self._layers.get
        return tuple(
            (
                None if is_alone else bits_as_bytes(columns),
                layer((GPU, group)),
                layer((CPU, group)),
                layer((DISK, group)),
            )
            for group, columns in self._group_columns.items()
        )

    def _tails_of(self, slot: int) -> list[Tail]:
        held = {} if self._ends is None else self._ends._holds_of(slot)
        return [Tail(held.get(group, _nowhere), stride, many) for group, stride, many in self._tails.get(slot, ())]

    def _holds_of(self, slot: int) -> dict[int, Holds]:
        """Return for each group of a unit what tells on which tier it holds a block."""
        column = self._column_of.get(slot)
        if column is None:
            return {}

        def holds(group: int) -> Holds:
            layers = [(tier, self._layers.get((tier, group))) for tier in (GPU, CPU, DISK)]
            tiers = [(tier, layer) for tier, layer in layers if layer is not None]
            return lambda block: next((tier for tier, layer in tiers if layer.holds(column, block)), None)

        return {group: holds(group) for group, columns in self._group_columns.items() if columns >> column & 1}


def _nowhere(block: int) -> None:
    return None
