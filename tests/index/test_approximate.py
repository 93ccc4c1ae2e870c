"""The router's own memory of what it sent: an LRU as large as the engine's cache."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.index.approximate import ApproximateMemory
from router.index.prefix_index import Match, PrefixIndex


def chain_of(tokens: tuple[int, ...]) -> list[int]:
    """Return a chain as engines make it: a block's hash names all blocks before it, too."""
    return [hash(tokens[: end + 1]) & (1 << 64) - 1 for end in range(len(tokens))]


def common(first: list[int], second: list[int]) -> int:
    return next(
        (place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )


def matched(index: PrefixIndex, chain: list[int]) -> int:
    match = index.match(chain, [0]).get(0)
    return match.blocks if match else 0


# Prompts as clients send them: turns of a few conversations that share beginnings.
PROMPTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900), st.integers(0, 2)), min_size=1, max_size=12)


def prompt_of(shape: tuple[int, int, int]) -> list[int]:
    seed, length, branch = shape
    rng = random.Random(seed)
    tokens = [rng.randrange(100) for _ in range(length)]
    if branch:
        tokens[-(length // 3 * branch) - 1 :] = [-branch] * (length // 3 * branch + 1)
    return chain_of(tuple(tokens))


@given(PROMPTS, PROMPTS)
@settings(max_examples=60, deadline=None)
def test_a_match_is_never_too_long_and_short_by_a_sixteenth_at_most(sent: list, asked: list) -> None:
    """A match never claims a block that was not sent, and misses few that were."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    chains = [prompt_of(shape) for shape in sent]
    for chain in chains:
        memory.remember(0, chain, num_blocks=100_000)
    for chain in map(prompt_of, asked):
        best = max(common(chain, other) for other in chains)
        assert best - best // 16 <= matched(index, chain) <= best


@given(PROMPTS)
@settings(max_examples=40, deadline=None)
def test_the_last_prompt_is_matched_to_the_block(sent: list) -> None:
    """A conversation's next turn holds its last one whole, however many blocks that has."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    for chain in map(prompt_of, sent):
        memory.remember(0, chain, num_blocks=100_000)
        assert matched(index, [*chain, 1, 2, 3]) == len(chain)
        assert matched(index, chain) == len(chain)


@given(PROMPTS, st.integers(1, 1_500))
@settings(max_examples=40, deadline=None)
def test_long_prompts_are_bounded_too(sent: list, bound: int) -> None:
    """The bound counts all blocks, not the sampled ones alone; the newest prompt is what is left."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    for chain in map(prompt_of, sent):
        memory.remember(0, chain, num_blocks=bound)
        assert index.blocks_of(0) <= bound
        assert matched(index, chain) >= min(len(chain), bound - bound // 16 - 1)


def test_what_is_remembered_is_forgotten_whole() -> None:
    """A unit that left leaves nothing, and one whose events took over is walked block by block again."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    chain = list(range(1, 400))
    memory.remember(0, chain, num_blocks=1_000)
    memory.forget(0)
    assert (index.blocks_of(0), matched(index, chain)) == (0, 0)
    memory.remember(0, chain, num_blocks=1_000)
    index.clear(0)
    memory.drop(0)
    index.store(0, chain[:100])
    assert (index.blocks_of(0), matched(index, chain)) == (100, 100)


def test_the_deepest_block_is_forgotten_first() -> None:
    """An engine evicts the deepest block of the oldest prompt first."""
    index = PrefixIndex()
    memory = ApproximateMemory(index)
    memory.remember(0, [1, 2, 3], num_blocks=4)
    memory.remember(0, [7, 8], num_blocks=4)
    assert index.match([1, 2, 3], [0]) == {0: Match(2, 2)}


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
