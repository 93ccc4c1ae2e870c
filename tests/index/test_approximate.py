"""The router's own memory of what it sent: an LRU as large as the engine's cache."""

from __future__ import annotations

from router.index.approximate import ApproximateMemory
from router.index.prefix_index import Match, PrefixIndex


def test_the_deepest_block_is_forgotten_first() -> None:
    """An engine evicts the deepest block of the oldest prompt first."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    memory.remember(0, [1, 2, 3], num_blocks=4)
    memory.remember(0, [7, 8], num_blocks=4)
    assert index.match([1, 2, 3], index.mask_of([0])) == {0: Match(2, 2)}


def test_it_never_holds_more_than_the_engine() -> None:
    """The bound is the engine's number of blocks, whatever clients send."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    for first in range(0, 1_000, 10):
        memory.remember(0, range(first, first + 10), num_blocks=25)
    assert index.blocks_of(0) == 25


def test_a_prompt_used_again_is_kept() -> None:
    """Recency is by use, not by arrival."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    memory.remember(0, [1], num_blocks=2)
    memory.remember(0, [2], num_blocks=2)
    memory.remember(0, [1], num_blocks=2)
    memory.remember(0, [3], num_blocks=2)
    assert index.dump(0) == {(1, 0, 0), (3, 0, 0)}


def test_a_dropped_memory_leaves_the_index_alone() -> None:
    """When events take over, what they say must not be removed by an old memory."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    memory.remember(0, [1, 2], num_blocks=2)
    memory.drop(0)
    memory.remember(0, [3, 4], num_blocks=4)
    assert index.dump(0) == {(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0)}


def test_what_events_told_before_is_kept_as_advice_and_bounded() -> None:
    """Its agent is missing: the blocks stay until half a cache was sent since, never past one and a half caches."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    index.store(0, range(100))
    for block in range(1_000, 1_050):
        memory.remember(0, [block], num_blocks=100)
    assert index.blocks_of(0) == 150
    memory.remember(0, [1_050], num_blocks=100)
    assert index.dump(0) == {(block, 0, 0) for block in range(1_000, 1_051)}
    for block in range(2_000, 2_200):
        memory.remember(0, [block], num_blocks=100)
        assert index.blocks_of(0) <= 100
