"""How far a unit holds a chain, and how that is found where its cache groups have blocks of several sizes.

Engines with such groups hash every prompt once, by a unit that divides all their block sizes (vLLM's
`prefix_match_unit`, by default the greatest common divisor). A larger block bears the hash of its last piece, since
that one stands for all before it. A prefix can be used as far as every group holds it: up to the end of a block in
each, or up to a piece within one where the engine registered the block for that piece, too.

Of some groups the end alone counts: a sliding window needs the blocks that it looks back on, a Mamba state is one
block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

GPU, CPU, DISK = 0, 1, 2
Holds = Callable[[int], int | None]
"""From a block's hash to the nearest tier that holds it in one group of one unit; None where none does."""


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


@dataclass(frozen=True, slots=True)
class Tail:
    """A cache group that keeps the ends of prefixes alone.

    Attributes:
        holds: Its blocks.
        stride: Pieces of a chain that make one block of the group.
        blocks: How many of the last blocks before a prefix's end it must hold; all of a shorter prefix.
    """

    holds: Holds
    stride: int
    blocks: int

    def last_end(self, hashes: Sequence[int], end: int) -> int:
        """Return the last place, at most `end` pieces, where a prefix of the chain may end; 0 when there is none.

        As vLLM 0.32's managers of such groups search: from the right, for the first run that is long enough.
        """
        step = 1 if self.blocks == 1 else self.stride  # a single state may be registered for a piece within its block
        run, last = 0, 0
        for place in range(end // step * step, 0, -step):
            if self.holds(hashes[place - 1]) is None:
                run = 0
                continue
            run += 1
            if run == 1:
                last = place
            if run == self.blocks:
                return last
        return last if run else 0


class SampledMemory(Protocol):
    """What is remembered for a unit of which only samples are in the index."""

    @property
    def extra_blocks(self) -> int:
        """Blocks that are held besides the samples."""

    def continued(self, chain: Sequence[int], blocks: int) -> int:
        """Return how many leading blocks of a chain are held, where a sample says that `blocks` are."""


def ended(hashes: Sequence[int], match: Match, tails: Sequence[Tail], ends: set[int] | None = None) -> Match:
    """Return a match cut to where every group that keeps ends alone lets a prefix end.

    Args:
        hashes: The chain, piece by piece.
        match: How far the other groups hold it.
        tails: The groups.
        ends: Where the other groups let it end; None: anywhere.
    """
    end = match.blocks
    while end:
        shorter = min(tail.last_end(hashes, end) for tail in tails)
        if ends is not None:
            shorter = max(place for place in ends if place <= shorter)
        if shorter == end:
            break
        end = shorter
    on_gpu = min(match.gpu_blocks, end)
    return Match(end, on_gpu, min(match.cpu_blocks, end - on_gpu))


def strided_match(
    hashes: Sequence[int], groups: Mapping[int, Holds], strides: Mapping[int, int], tails: Sequence[Tail] = ()
) -> Match:
    """Return how far a unit holds a chain whose groups have blocks of several sizes.

    Args:
        hashes: The chain, piece by piece.
        groups: Each cache group of the unit.
        strides: Pieces that make one block of a group; 1 where it is not named.
        tails: Groups that keep ends alone.
    """
    anywhere, cpu, gpu = (
        _common([_ends(hashes, holds, strides.get(group, 1), tier) for group, holds in groups.items()])
        for tier in (DISK, CPU, GPU)
    )
    match = Match(max(anywhere), max(gpu), max(cpu) - max(gpu))
    return ended(hashes, match, tails, anywhere) if tails else match


def _ends(hashes: Sequence[int], holds: Holds, stride: int, farthest: int) -> set[int]:
    """Return where, in pieces, a prefix may end for one group: at the end of each block that is held without a gap, and
    at pieces of these and of the next one that are held."""

    def is_held(end: int) -> bool:
        tier = holds(hashes[end - 1])
        return tier is not None and tier <= farthest

    ends, end = {0}, 0
    while end < len(hashes):
        ends.update(filter(is_held, range(end + 1, min(end + stride, len(hashes) + 1))))
        end += stride
        if end > len(hashes) or not is_held(end):
            break
        ends.add(end)
    return ends


def _common(ends: Sequence[set[int]]) -> set[int]:
    return set.intersection(*ends) if ends else {0}
