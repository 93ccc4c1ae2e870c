"""Expected blocks: counted for cost until the truth is known."""

from __future__ import annotations

from router.index.expected import ExpectedBlocks


def test_a_prompt_that_follows_sees_what_the_first_will_leave() -> None:
    """Two held blocks and three expected ones make five."""
    expected = ExpectedBlocks()
    expected.expect(7, [30, 40, 50])
    assert expected.extend(7, [10, 20, 30, 40, 50, 60], held_blocks=2) == 5


def test_other_units_expect_nothing() -> None:
    """Expectations belong to one unit."""
    expected = ExpectedBlocks()
    expected.expect(7, [10])
    assert expected.extend(8, [10], held_blocks=0) == 0


def test_two_requests_for_the_same_blocks_both_have_to_end() -> None:
    """The second request's expectation outlives the first's."""
    expected = ExpectedBlocks()
    first, second = expected.expect(1, [10]), expected.expect(1, [10])
    expected.end(first)
    expected.end(first)
    assert expected.extend(1, [10], 0) == 1
    expected.end(second)
    assert len(expected) == 0


def test_an_expectation_ends_after_its_time() -> None:
    """Until then it counts, afterwards not."""
    expected = ExpectedBlocks()
    expected.end_at(expected.expect(1, [10]), 5.0)
    expected.settle(4.9)
    assert expected.extend(1, [10], 0) == 1
    expected.settle(5.0)
    assert expected.extend(1, [10], 0) == 0
