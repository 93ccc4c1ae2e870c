"""For each block the set of units that hold it: one layer of the index, and the walk along a chain over layers.

A unit has a column, a small number, and a set of units is an int with a bit for each column. A match is a walk along
the chain that keeps the set of those that held every block so far: one look-up and one AND a block, for all units
together. Sets are shared: all blocks that only column 3 holds point at one int, so a block costs its key and its
dictionary entry.

This is the pure Python twin of `router/native/holders.c`, which does the same in a fifth of the memory and a tenth of
the time. Both are held equal by tests; `FASTEST` is the native one where it was built.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, Protocol

from router.native import core

MAX_SHARED_SETS = 65_536
"""Sets of units kept for sharing. Past that sharing begins anew: a table of all that ever were would only grow."""
NOBODY = -1
"""A column that no unit has."""


class HolderTable(Protocol):
    """One layer: a tier of a cache group."""

    def __len__(self) -> int:
        """Distinct blocks, those of columns that are yet to be swept too."""

    def add(self, column: int, blocks: Iterable[int], /) -> int:
        """A column holds these blocks (64 bits unsigned); returns for how many that is new."""

    def discard(self, column: int, blocks: Iterable[int], /) -> int:
        """A column no longer holds these blocks; returns how many it held."""

    def holds(self, column: int, block: int, /) -> bool:
        """Whether a column holds a block."""

    def sweep(self, columns: int, slice_blocks: int) -> Iterator[int]:
        """Take columns (a bit each) out of every block, slice by slice; yields how many blocks each slice had.

        The table may change between slices, as long as these columns are not used again.
        """

    def held_by(self, column: int, slice_blocks: int) -> Iterator[list[int]]:
        """Yield the blocks of a column: of so many blocks of the table each time. Changes between may be missed."""


class PythonHolderTable:
    """See `HolderTable`. To sweep or to list it, its keys are copied first (about 10 ms a million)."""

    __slots__ = ("_held", "_sets")

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._sets: dict[int, int] = {}

    def __len__(self) -> int:
        """See `HolderTable`."""
        return len(self._held)

    def add(self, column: int, blocks: Iterable[int]) -> int:
        """See `HolderTable`."""
        bit, held, shared, added = 1 << column, self._held, self._sets, 0
        alone = shared.setdefault(bit, bit)
        for block in blocks:
            before = held.get(block)
            if before is None:
                held[block] = alone
                added += 1
            elif not before & bit:
                both = before | bit
                held[block] = shared.setdefault(both, both)
                added += 1
        self._bound_sets()
        return added

    def discard(self, column: int, blocks: Iterable[int]) -> int:
        """See `HolderTable`."""
        bit, held, shared, removed = 1 << column, self._held, self._sets, 0
        for block in blocks:
            before = held.get(block, 0)
            if before & bit:
                removed += 1
                rest = before ^ bit
                if rest:
                    held[block] = shared.setdefault(rest, rest)
                else:
                    del held[block]
        self._bound_sets()
        return removed

    def holds(self, column: int, block: int) -> bool:
        """See `HolderTable`."""
        return bool(self._held.get(block, 0) >> column & 1)

    def sweep(self, columns: int, slice_blocks: int) -> Iterator[int]:
        """See `HolderTable`."""
        held, blocks = self._held, list(self._held)
        while blocks:
            part = blocks[-slice_blocks:]
            del blocks[-slice_blocks:]
            for block in part:
                before = held.get(block, 0)
                if before & columns:
                    rest = before & ~columns
                    if rest:
                        held[block] = self._sets.setdefault(rest, rest)
                    else:
                        del held[block]
            yield len(part)
        self._sets = {each: each for each in self._sets if not each & columns}

    def held_by(self, column: int, slice_blocks: int) -> Iterator[list[int]]:
        """See `HolderTable`."""
        held, blocks = self._held, list(self._held)
        for start in range(0, len(blocks), slice_blocks):
            part = blocks[start : start + slice_blocks]
            yield [block for block in part if held.get(block, 0) >> column & 1]

    def _bound_sets(self) -> None:
        if len(self._sets) > MAX_SHARED_SETS:
            self._sets.clear()


Group = tuple[bytes | None, Any, Any, Any]
"""A cache group: the columns that have it (little-endian bits; None: all that are asked for), and its table on GPU, CPU
and disk (None where nothing is)."""


def python_walk(
    groups: tuple[Group, ...], chain: Sequence[int], columns: array[int]
) -> tuple[list[int], list[int] | None, list[int] | None]:
    """Find how many leading blocks of a chain each column holds: in every group that it has, on some tier.

    Args:
        columns: Those asked for, type code `i`; `NOBODY` matches nothing.

    Returns:
        For each column asked for, in their order: the blocks; how many of these have to be loaded from the CPU; and
        how many from disk. The latter two are None where no group has these tiers.
    """
    depths = dict.fromkeys(columns, 0)
    mask = sum(1 << column for column in depths if column != NOBODY)
    if len(groups) == 1 and groups[0][0] is None and groups[0][2] is groups[0][3] is None:
        _walk_gpu(groups[0][1], chain, mask, depths)
        return [depths[column] for column in columns], None, None
    cpu, disk = dict.fromkeys(columns, 0), dict.fromkeys(columns, 0)
    _walk_tiers(groups, chain, mask, depths, cpu, disk)
    blocks = [depths[column] for column in columns]
    if all(on_cpu is on_disk is None for _, _, on_cpu, on_disk in groups):
        return blocks, None, None
    return blocks, [cpu[column] for column in columns], [disk[column] for column in columns]


def _walk_gpu(table: Any, chain: Sequence[int], mask: int, depths: dict[int, int]) -> None:
    depth = 0
    holders = {}.get if table is None else table._held.get
    for block in chain:
        held = mask & holders(block, 0)
        if held != mask:
            _end(depths, mask ^ held, depth)
            mask = held
        if not mask:
            return
        depth += 1
    _end(depths, mask, depth)


def _walk_tiers(
    groups: Sequence[Group],
    chain: Sequence[int],
    mask: int,
    depths: dict[int, int],
    cpu: dict[int, int],
    disk: dict[int, int],
) -> None:
    layers, grouped = [], 0
    for columns, *tables in groups:
        having = -1 if columns is None else int.from_bytes(columns, "little")
        layers.append((~having, *({} if table is None else table._held for table in tables)))
        grouped |= having
    mask &= grouped
    depth = 0
    for block in chain:
        held = on_gpu = on_cpu = mask
        for without, *tiers in layers:
            near, beside, far = (tier.get(block, 0) for tier in tiers)
            near |= without
            on_gpu &= near
            on_cpu &= near | beside
            held &= near | beside | far
        if held != mask:
            _end(depths, mask ^ held, depth)
            mask = held
        if not mask:
            return
        for column in bits(mask & on_cpu & ~on_gpu):
            cpu[column] += 1
        for column in bits(mask & ~on_cpu):
            disk[column] += 1
        depth += 1
    _end(depths, mask, depth)


def _end(depths: dict[int, int], columns: int, depth: int) -> None:
    for column in bits(columns):
        depths[column] = depth


def python_extended(
    table: Any, chain: Sequence[int], places: Sequence[int], columns: Sequence[int], held_blocks: Sequence[int]
) -> Sequence[int]:
    """Find how far columns that hold a chain up to some block go on, where the table has only some of its blocks.

    Args:
        places: Blocks of a chain that tables like this one have, rising: block `p` stands for those before it.
        held_blocks: By column asked for: how many leading blocks are held for certain.

    Returns:
        For each column asked for how many leading blocks it has; `held_blocks` itself where no block is in the table.
    """
    samples = bisect_left(places, len(chain))
    holders = [table._held.get(chain[place], 0) for place in places[:samples]]
    anybody = reduce(or_, holders, 0)
    if not anybody:
        return held_blocks
    extended = list(held_blocks)
    for position, column in enumerate(columns):
        if column == NOBODY or not anybody >> column & 1:
            continue
        sample = bisect_left(places, held_blocks[position], 0, samples)
        while sample < samples and holders[sample] >> column & 1:
            extended[position] = places[sample] + 1
            sample += 1
    return extended


def bits_as_bytes(mask: int) -> bytes:
    """Return a mask as little-endian bytes."""
    return mask.to_bytes(mask.bit_length() // 8 + 1, "little")


def bits(mask: int) -> Iterator[int]:
    """Yield the places of the bits of a mask that are set, rising."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


Walk = Callable[[tuple[Group, ...], Sequence[int], "array[int]"], tuple[list[int], list[int] | None, list[int] | None]]


Extended = Callable[[HolderTable, Sequence[int], "array[int]", "array[int]", Sequence[int]], Sequence[int]]


class Core(NamedTuple):
    """A kind of table, and what is found in tables of this kind: see `python_walk` and `python_extended`."""

    table: Callable[[], HolderTable]
    walk: Walk
    extended: Extended


def _native_core() -> Core | None:
    built: Any = core("holders")
    if built is None:
        return None

    class NativeHolderTable(built.HolderTable):  # type: ignore[misc]  # C has no types
        """The native table; it is swept and listed by whole parts."""

        __slots__ = ()

        def sweep(self, columns: int, slice_blocks: int) -> Iterator[int]:
            """See `HolderTable`."""
            mask = bits_as_bytes(columns)
            for part in range(built.PARTS):
                yield self.sweep_part(part, mask)

        def held_by(self, column: int, slice_blocks: int) -> Iterator[list[int]]:
            """See `HolderTable`."""
            step = max(1, slice_blocks * built.PARTS // max(1, len(self)))
            for first in range(0, built.PARTS, step):
                parts = range(first, min(first + step, built.PARTS))
                yield [block for part in parts for block in self.part(part, column)]

    return Core(NativeHolderTable, built.walk, built.extended)


PYTHON = Core(PythonHolderTable, python_walk, python_extended)
NATIVE = _native_core()
FASTEST = NATIVE or PYTHON
