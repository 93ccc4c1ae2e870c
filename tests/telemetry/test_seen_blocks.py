"""Memory of blocks that went by: bounded, right within its error."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.telemetry.seen_blocks import CORE, STANDARD_ERROR, DistinctBlocks, SeenBlocks


def hashes(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(64) for _ in range(count)]


def test_what_went_by_before_is_a_beginning() -> None:
    """A chain that shares 37 blocks with an earlier one was seen that far."""
    seen, first = SeenBlocks(), hashes(100)
    assert seen.note(first) == 0
    assert seen.note(first) == 100
    assert seen.note([*first[:37], *hashes(20, 1)]) == 37
    assert seen.note([]) == 0


def test_models_do_not_see_each_other_s_blocks() -> None:
    """Equal hashes of another model are other blocks."""
    seen, chain = SeenBlocks(), hashes(50)
    seen.note(chain, seed=1 << 40 | 7)
    assert seen.note(chain, seed=5) == 0


def test_memory_is_of_fixed_size_and_keeps_the_last_generation() -> None:
    """After more than two generations the first block is forgotten, the last generation is not."""
    seen = SeenBlocks(filter_bits=14)
    size_bytes, oldest = seen.used_bytes, hashes(64, 99)
    seen.note(oldest)
    last: list[int] = []
    for number in range(2 * seen.generation_blocks // 100 + 2):
        last = hashes(100, 1_000 + number)
        seen.note(last)
    assert seen.used_bytes == size_bytes == 2 * 2**14 // 8
    assert seen.note(oldest[:1]) == 0
    assert seen.note(last) == 100


def test_few_blocks_pass_for_seen_by_chance() -> None:
    """With a generation nearly full, of 500 new chains of 8 blocks at most two in a hundred look seen at all."""
    seen = SeenBlocks(filter_bits=17)
    seen.note(hashes(seen.generation_blocks - 4_500))
    mistaken = sum(seen.note(hashes(8, 1_000 + number)) > 0 for number in range(500))
    assert mistaken <= 10


@pytest.mark.parametrize("count", [0, 1, 10, 1_000, 30_000, 300_000])
def test_distinct_blocks_are_counted_within_the_error(count: int) -> None:
    """Four standard errors hold whatever the number; counting twice changes nothing."""
    counter, blocks = DistinctBlocks(), hashes(count, count)
    for _ in range(2):
        counter.add(blocks, 0, count)
    assert counter.estimate() == pytest.approx(count, rel=4 * STANDARD_ERROR)


def test_counts_of_two_processes_become_one() -> None:
    """Of blocks that both saw, one is counted; registers travel as bytes."""
    one, other, blocks = DistinctBlocks(), DistinctBlocks(), hashes(30_000)
    one.add(blocks, 0, 20_000)
    other.add(blocks, 10_000, 30_000)
    one.take(DistinctBlocks(bytes(other)))
    assert one.estimate() == pytest.approx(30_000, rel=4 * STANDARD_ERROR)


@pytest.mark.skipif(CORE is None, reason="no native core was built")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 2**64 - 1)), max_size=12))
def test_native_and_python_are_equal(notes: list[tuple[int, int, int]]) -> None:
    """The same answers and the same bytes, whatever goes by."""
    native, python = SeenBlocks(10), SeenBlocks(10, None)
    counters = DistinctBlocks(), DistinctBlocks(None, None)
    edge = [0, 2**64 - 1, 2**50 - 1, 2**50, 1]
    for number, length, seed in notes:
        chain = (edge + hashes(40, number))[:length]
        assert native.note(chain, seed) == python.note(chain, seed)
        for counter in counters:
            counter.add(chain, length // 3, length)
    assert (native._now, native._before) == (python._now, python._before)
    assert bytes(counters[0]) == bytes(counters[1])
    for counter in counters:
        other = DistinctBlocks(None, None)
        other.add(hashes(20, 9), 0, 20)
        counter.take(other)
    assert bytes(counters[0]) == bytes(counters[1])


@pytest.mark.skipif(CORE is None, reason="no native core was built")
def test_the_native_core_refuses_what_does_not_fit() -> None:
    """No byte outside the given ones is touched."""
    assert CORE is not None
    with pytest.raises(ValueError, match="generations"):
        CORE.note(bytearray(3), bytes(3), [1], 0)
    with pytest.raises(ValueError, match="places"):
        CORE.count(bytearray(1 << 14), [1], 0, 2)
    with pytest.raises(OverflowError):
        CORE.note(bytearray(4), bytes(4), [-1], 0)
