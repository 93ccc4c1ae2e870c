"""What `make bench-index` puts into every index: the same chains, from the same seed. Standard library only, since
another project's interpreter runs it too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CHAIN_BLOCKS = 512
EVENT_BLOCKS = 16
"""Blocks that an engine announces at once: what a prefill step of 256 tokens fills."""
ASKED = 2_000
"""Chains that are looked up."""


@dataclass(frozen=True, slots=True)
class Size:
    """What is asked for on the command line."""

    blocks: int
    units: int


def size() -> Size:
    """Read the command line of one measured process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--units", type=int, required=True)
    given = parser.parse_args()
    return Size(given.blocks, given.units)


def chains(blocks: int) -> Iterator[tuple[int, array[int]]]:
    """Yield (number, hashes) of chains that have so many blocks together, each hash once."""
    rng = random.Random(blocks)
    for number in range(max(1, blocks // CHAIN_BLOCKS)):
        yield number, array("Q", rng.randbytes(8 * CHAIN_BLOCKS))


def events(chain: array[int]) -> Iterator[array[int]]:
    """Yield a chain as an engine announces it."""
    for start in range(0, len(chain), EVENT_BLOCKS):
        yield chain[start : start + EVENT_BLOCKS]


def asked_chains(blocks: int) -> list[list[int]]:
    """Return chains to look up, spread over all of them, in an order that no cache of the processor likes."""
    total = max(1, blocks // CHAIN_BLOCKS)
    step = max(1, total // ASKED)
    found = [list(chain) for number, chain in chains(blocks) if number % step == 0]
    random.Random(1).shuffle(found)
    return found


def memory_bytes() -> int:
    """Return the process's resident memory (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS in /proc/self/status")


def median_us(call: Callable[[list[int]], object], given: list[list[int]]) -> float:
    """Return the median microseconds of a call, by the clock: a library may work in a thread of its own."""
    taken = []
    for item in given:
        begun = time.perf_counter_ns()
        call(item)
        taken.append(time.perf_counter_ns() - begun)
    return statistics.median(taken) / 1_000
