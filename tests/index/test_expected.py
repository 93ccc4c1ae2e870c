"""Expected blocks: counted for cost until the truth is known."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.expected import ExpectedBlocks
from router.index.holders import NATIVE, PYTHON, Core

CORES = [pytest.param(PYTHON, id="python")] + ([pytest.param(NATIVE, id="native")] if NATIVE else [])


@pytest.fixture(params=CORES)
def expected(request: pytest.FixtureRequest) -> ExpectedBlocks:
    """Of each kind, with nothing expected."""
    return ExpectedBlocks(request.param)


def extended(expected: ExpectedBlocks, slot: int, chain: Sequence[int], held_blocks: int) -> int:
    """Leading blocks that one unit will hold."""
    return expected.extended(array("i", [slot]), chain, [held_blocks])[0]


def test_a_prompt_that_follows_sees_what_the_first_will_leave(expected: ExpectedBlocks) -> None:
    """Two held blocks and three expected ones make five."""
    expected.expect(7, [10, 20, 30, 40, 50], held_blocks=2)
    assert extended(expected, 7, [10, 20, 30, 40, 50, 60], 2) == 5


def test_other_units_expect_nothing(expected: ExpectedBlocks) -> None:
    """Expectations belong to one unit."""
    expected.expect(7, [10], 0)
    assert extended(expected, 8, [10], 0) == 0


def test_two_requests_for_the_same_blocks_both_have_to_end(expected: ExpectedBlocks) -> None:
    """The second request's expectation outlives the first's."""
    first, second = expected.expect(1, [10], 0), expected.expect(1, [10], 0)
    expected.end(first)
    expected.end(first)
    assert extended(expected, 1, [10], 0) == 1
    expected.end(second)
    assert len(expected) == 0


def test_an_expectation_ends_after_its_time(expected: ExpectedBlocks) -> None:
    """Until then it counts, afterwards not."""
    expected.end_at(expected.expect(1, [10], 0), 5.0)
    expected.settle(4.9)
    assert extended(expected, 1, [10], 0) == 1
    expected.settle(5.0)
    assert extended(expected, 1, [10], 0) == 0


def test_a_long_prompt_is_expected_to_a_sixteenth(expected: ExpectedBlocks) -> None:
    """What follows a held beginning is nearly all seen, and never more than was placed."""
    chain = list(range(1_000, 2_000))
    expected.expect(1, chain, held_blocks=100)
    for longer in (chain, [*chain, 1, 2], chain[:777]):
        seen = extended(expected, 1, longer, 100)
        most = min(len(longer), len(chain))
        assert most - most // 16 <= seen <= most
    assert extended(expected, 1, chain, 50) == 50


def test_what_was_expected_of_a_unit_that_left_does_not_count_for_its_slot_s_next(expected: ExpectedBlocks) -> None:
    """And when those requests end, it changes nothing for the next one either."""
    before = expected.expect(3, [10, 20], 0)
    expected.forget(3)
    assert (extended(expected, 3, [10, 20], 0), len(expected)) == (0, 0)
    expected.expect(3, [10, 20], 0)
    expected.end(before)
    assert extended(expected, 3, [10, 20], 0) == 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["expect", "end", "forget"]),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(1, 300),
        st.integers(0, 300),
    ),
    max_size=25,
)


@given(STEPS, st.integers(0, 2), st.lists(st.integers(0, 300), min_size=4, max_size=4))
def test_native_and_python_expect_the_same(steps: list, asked: int, held: list[int]) -> None:
    """Whatever was placed, ended and forgotten; and both as counting one by one has it."""

    def after(core: Core) -> tuple[list[int], int]:
        expected, placed = ExpectedBlocks(core), []
        for name, slot, seed, length, at in steps:
            if name == "expect":
                placed.append(expected.expect(slot, chain_of(seed, length), min(at, length)))
            elif name == "end" and placed:
                expected.end(placed.pop(at % len(placed)))
            elif name == "forget":
                expected.forget(slot)
        return list(expected.extended(array("i", [0, 1, 2, 3]), chain_of(asked, 300), held)), len(expected)

    assert NATIVE is None or after(NATIVE) == after(PYTHON)


def chain_of(seed: int, length: int) -> list[int]:
    """Chains of two seeds share their first hundred blocks."""
    return [place if place < 100 else place + 1_000 * (seed + 1) for place in range(length)]
