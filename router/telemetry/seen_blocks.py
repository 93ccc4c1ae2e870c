"""Which blocks went by before, and how many distinct ones: what a cache without end would have had.

Two memories of fixed size, since blocks come without end:

- `SeenBlocks`, a Bloom filter in two generations, says how much of a prompt went by among the last few million blocks.
  A block's hash depends on all before it, so what was seen is a beginning of a chain, and is found by halving.
- `DistinctBlocks`, a HyperLogLog, counts distinct blocks and forgets none (Flajolet and others, 2007; the estimator
  without bias is Ertl's, "New cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6).

Block hashes are uniform, so their own bits serve as hash functions (in the filter by double hashing of their halves).
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from types import ModuleType

from router.native import core

FILTER_BITS = 24
"""2^24 bits: 2 MB a generation."""
PROBES = 4
BITS_A_BLOCK = 10
"""1.2% of unseen blocks pass for seen when a generation is full."""
INDEX_BITS = 14
"""2^14 registers of a byte."""
_REGISTERS = 1 << INDEX_BITS
_REST_BITS = 64 - INDEX_BITS
_REST = (1 << _REST_BITS) - 1
STANDARD_ERROR = 1.04 / math.sqrt(_REGISTERS)
"""Of a HyperLogLog's estimate, as a share of it: 0.8%."""


CORE = core("seen")
"""The same loops in C, where a compiler was: a microsecond where Python takes a hundred."""


class SeenBlocks:
    """Remembers the last `generation_blocks` blocks, and up to as many before them.

    Args:
        filter_bits: A generation has two to the power of so many bits, 3 to 32.
        native: The native loops; None: Python's.
    """

    def __init__(self, filter_bits: int = FILTER_BITS, native: ModuleType | None = CORE) -> None:
        self._core = native
        self._mask = (1 << filter_bits) - 1
        self._now = bytearray(1 << filter_bits >> 3)
        self._before = bytearray(1 << filter_bits >> 3)
        self._blocks = 0
        self.generation_blocks = (1 << filter_bits) // BITS_A_BLOCK

    @property
    def used_bytes(self) -> int:
        """What both generations take."""
        return len(self._now) + len(self._before)

    def note(self, chain: Sequence[int], seed: int = 0) -> int:
        """Take note of a prompt's blocks; return how many of the first ones went by before.

        Args:
            seed: 64 bits that tell apart what may have equal hashes: models.
        """
        if self._core is not None:
            low: int = self._core.note(self._now, self._before, chain, seed)
        else:
            low = self._note(chain, seed)
        self._blocks += len(chain) - low
        if self._blocks > self.generation_blocks:
            self._now, self._before = bytearray(len(self._now)), self._now
            self._blocks = 0
        return low

    def _note(self, chain: Sequence[int], seed: int) -> int:
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high) // 2
            # Two neighbours, so that a block that passes for seen by chance rarely leads astray.
            if self._has(chain[middle] ^ seed) and (middle == low or self._has(chain[middle - 1] ^ seed)):
                low = middle + 1
            else:
                high = middle
        for place in range(low, len(chain)):
            self._add(chain[place] ^ seed)
        return low

    def _has(self, block: int) -> bool:
        now, before, mask = self._now, self._before, self._mask
        in_now = in_before = True
        first, step = block & 0xFFFFFFFF, block >> 32 | 1
        for probe in range(PROBES):
            bit = (first + probe * step) & mask
            byte, place = bit >> 3, 1 << (bit & 7)
            in_now = in_now and bool(now[byte] & place)
            in_before = in_before and bool(before[byte] & place)
            if not (in_now or in_before):
                return False
        return True

    def _add(self, block: int) -> None:
        now, mask = self._now, self._mask
        first, step = block & 0xFFFFFFFF, block >> 32 | 1
        for probe in range(PROBES):
            bit = (first + probe * step) & mask
            now[bit >> 3] |= 1 << (bit & 7)


class DistinctBlocks:
    """Counts distinct blocks in 16 KB."""

    __slots__ = ("_core", "_registers")

    def __init__(self, registers: bytes | None = None, native: ModuleType | None = CORE) -> None:
        self._core = native
        self._registers = bytearray(_REGISTERS) if registers is None else bytearray(registers)

    def add(self, chain: Sequence[int], begin: int, end: int) -> None:
        """Count the blocks from place `begin` to before `end`."""
        if self._core is not None:
            self._core.count(self._registers, chain, begin, end)
            return
        registers = self._registers
        for place in range(begin, end):
            block = chain[place]
            rank = _REST_BITS + 1 - (block & _REST).bit_length()
            index = block >> _REST_BITS
            if registers[index] < rank:
                registers[index] = rank

    def take(self, other: DistinctBlocks) -> None:
        """Count what another counted, too."""
        if self._core is not None:
            self._core.join(self._registers, other._registers)
        else:
            self._registers = bytearray(map(max, self._registers, other._registers))

    def packed(self) -> str:
        """Return it as text, for another process."""
        return base64.b64encode(zlib.compress(bytes(self._registers))).decode()

    @classmethod
    def unpacked(cls, text: str) -> DistinctBlocks:
        """Return what another process packed."""
        return cls(zlib.decompress(base64.b64decode(text)))

    def __bytes__(self) -> bytes:
        return bytes(self._registers)

    def estimate(self) -> float:
        """Return how many distinct blocks were counted; its standard error is `STANDARD_ERROR` of it."""
        counts = [self._registers.count(rank) for rank in range(_REST_BITS + 2)]
        total = _REGISTERS * _tau(1 - counts[_REST_BITS + 1] / _REGISTERS)
        for rank in range(_REST_BITS, 0, -1):
            total = 0.5 * (total + counts[rank])
        total += _REGISTERS * _sigma(counts[0] / _REGISTERS)
        return _REGISTERS * _REGISTERS / (2 * math.log(2)) / total if math.isfinite(total) else 0.0


def _sigma(share: float) -> float:
    if share == 1:
        return math.inf
    weight, total = 1.0, share
    while True:
        share *= share
        before, total = total, total + share * weight
        weight += weight
        if total == before:
            return total


def _tau(share: float) -> float:
    if share in (0, 1):
        return 0.0
    weight, total = 1.0, 1 - share
    while True:
        share = math.sqrt(share)
        weight *= 0.5
        before, total = total, total - (1 - share) ** 2 * weight
        if total == before:
            return total / 3
