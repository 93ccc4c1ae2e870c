"""The bound, against the textbook example and against a model written the slow way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.workloads.lru_bound import BlockNames, PooledCache, lru_bound

S = list(range(1_000, 1_050))  # system prompt, 50 tokens
A = list(range(2_000, 2_020))  # questions, 20 tokens
B = list(range(3_000, 3_020))
ANSWER = list(range(4_000, 4_030))  # 30 tokens
FOLLOW_UP = list(range(5_000, 5_012))  # 12 tokens


def test_the_textbook_example() -> None:
    """Block 16: 0 of 70; 48 of 70; 96 of 112; one token in front 0 of 71; 64 tokens 0, then 48 of 64."""
    cache = PooledCache(1_000, 16)
    assert cache.serve(S + A, ANSWER) == 0
    assert cache.serve(S + B, []) == 48
    assert cache.serve(S + A + ANSWER + FOLLOW_UP, []) == 96
    assert cache.serve([9, *S, *A], []) == 0
    prompt = list(range(64))
    assert [cache.serve(prompt, [1]), cache.serve(prompt, [1])] == [0, 48]


def test_the_last_token_of_an_answer_is_not_cached() -> None:
    """A prompt of 16 and an answer of 16: the second block lacks the last token's KV."""
    prompt, answer = list(range(16)), list(range(16, 32))
    cache = PooledCache(10, 16)
    cache.serve(prompt, answer)
    assert cache.serve([*prompt, *answer, 7], []) == 16
    cache = PooledCache(10, 16)
    cache.serve(prompt, [*answer, 99])
    assert cache.serve([*prompt, *answer, 7], []) == 32


def test_the_deepest_block_goes_first() -> None:
    """Three blocks in a cache of three: one more block of another prompt costs the first its deepest block alone."""
    cache = PooledCache(3, 4)
    first, second = list(range(13)), list(range(100, 105))
    cache.serve(first, [])
    cache.serve(second, [])
    assert cache.evicted_blocks == 1
    assert cache.serve(first, []) == 8


def test_equal_tokens_behind_different_prefixes_are_different_blocks() -> None:
    """A block's name holds all that comes before it."""
    names = BlockNames(2)
    assert names.chain([1, 2, 5, 6])[1] != names.chain([3, 4, 5, 6])[1]
    assert names.chain([1, 2, 5, 6, 7]) == names.chain([1, 2, 5, 6])
    assert len(names) == 4


def test_the_bound_adds_up() -> None:
    """Two requests of 70 tokens, 48 cached: the rate is 48 of 140; 4 + 4 blocks less the 3 shared are distinct."""
    bound = lru_bound([(S + A, []), (S + B, [])], num_blocks=100, block_size=16)
    assert (bound.prompt_tokens, bound.cached_tokens, bound.distinct_blocks, bound.evicted_blocks) == (140, 48, 5, 0)
    assert bound.hit_rate == 48 / 140


def test_no_requests_hit_nothing() -> None:
    """An empty run has a rate of 0 and no division by zero."""
    assert lru_bound([], 1, 1).hit_rate == 0.0


def test_a_cache_of_nothing_is_refused() -> None:
    """A cache without blocks is a caller's mistake."""
    with pytest.raises(ValueError, match="at least one block"):
        PooledCache(0, 16)


class SlowCache:
    """The same rules with lists: prefixes as tuples, a clock, the oldest found by search."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size, self.clock = num_blocks, block_size, 0
        self.used: dict[tuple[int, ...], int] = {}

    def serve(self, prompt: list[int], output: list[int]) -> int:
        hit = 0
        while hit + self.block_size <= len(prompt) - 1 and tuple(prompt[: hit + self.block_size]) in self.used:
            hit += self.block_size
        kept = prompt + output[:-1]
        for end in range(len(kept) // self.block_size * self.block_size, 0, -self.block_size):
            self.clock += 1
            self.used[tuple(kept[:end])] = self.clock
        while len(self.used) > self.num_blocks:
            del self.used[min(self.used, key=lambda prefix: self.used[prefix])]
        return hit


token = st.integers(0, 2)
request = st.tuples(st.lists(token, max_size=14), st.lists(token, max_size=5))


@given(requests=st.lists(request, max_size=25), num_blocks=st.integers(1, 12), block_size=st.integers(1, 4))
def test_it_agrees_with_the_slow_model(
    requests: list[tuple[list[int], list[int]]], num_blocks: int, block_size: int
) -> None:
    """On any requests, sizes and pressure, both caches hit the same tokens request by request."""
    fast, slow = PooledCache(num_blocks, block_size), SlowCache(num_blocks, block_size)
    for prompt, output in requests:
        assert fast.serve(prompt, output) == slow.serve(prompt, output)
