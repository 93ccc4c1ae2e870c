"""Which blocks of a long chain are looked at where a few stand for all.

A block's hash names all blocks before it, too. So where it is known that a set holds chains from their first block on,
a few blocks tell nearly all: the first 32, then every second up to 64, every fourth up to 128, and so on. Between the
last sample that a set holds and the next one lies at most a sixteenth of what is held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

DENSE_BLOCKS = 32
"""Of a chain no longer than this each block is a sample."""
_PER_OCTAVE = 16


def _counts(longest: int) -> list[int]:
    counts = list(range(1, DENSE_BLOCKS + 1))
    step = 1
    while counts[-1] < longest:
        step *= 2
        counts += [counts[-1] + step * number for number in range(1, _PER_OCTAVE + 1)]
    return counts


SAMPLES: Sequence[int] = _counts(1 << 22)
"""Blocks up to each sample and with it, rising: sample k is block `SAMPLES[k] - 1` of a chain."""
PLACES: Sequence[int] = [count - 1 for count in SAMPLES]


_GETTERS: dict[int, Callable[[Any], tuple[int, ...]]] = {}


def sampled(chain: Sequence[int]) -> Sequence[int]:
    """Return the samples of a chain."""
    if len(chain) <= DENSE_BLOCKS:
        return chain
    count = samples_in(len(chain))
    getter = _GETTERS.get(count)
    if getter is None:  # there are not 400 counts
        getter = _GETTERS[count] = itemgetter(*PLACES[:count])
    return getter(chain)


def samples_in(blocks: int) -> int:
    """Return how many samples a chain of so many blocks has."""
    return bisect_right(SAMPLES, blocks)
