"""Sampled blocks: few enough, close enough."""

from __future__ import annotations

import itertools

from router.index.sampling import PLACES, SAMPLES, samples_in


def test_every_block_of_a_short_prompt_is_a_sample() -> None:
    """A system prompt of 512 tokens is known to the block."""
    assert list(SAMPLES[:32]) == list(range(1, 33))


def test_samples_are_at_most_a_sixteenth_apart() -> None:
    """What lies between two of them is little beside what lies before."""
    assert all(after - before <= max(1, before // 16) for before, after in itertools.pairwise(SAMPLES))


def test_a_long_prompt_has_few_samples() -> None:
    """Of 100,000 tokens in blocks of 16 some 160 blocks are looked at."""
    assert samples_in(6_250) < 160


def test_only_whole_samples_are_in_a_chain() -> None:
    """Each sample in a chain is one of its blocks, and the next one is not."""
    for blocks in (0, 1, 32, 33, 34, 500, 6_250):
        assert all(place < blocks for place in PLACES[: samples_in(blocks)])
        assert PLACES[samples_in(blocks)] >= blocks
