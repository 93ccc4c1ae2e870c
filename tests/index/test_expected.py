"""Expected blocks: counted for cost until the truth is known."""

from __future__ import annotations

from router.index.expected import ExpectedBlocks


def test_a_prompt_that_follows_sees_what_the_first_will_leave() -> None:
    """Two held blocks and three expected ones make five."""
    expected = ExpectedBlocks()
    expected.expect(7, [10, 20, 30, 40, 50], held_blocks=2)
    assert expected.extend(7, [10, 20, 30, 40, 50, 60], held_blocks=2) == 5


def test_other_units_expect_nothing() -> None:
    """Expectations belong to one unit."""
    expected = ExpectedBlocks()
    expected.expect(7, [10], 0)
    assert expected.extend(8, [10], held_blocks=0) == 0


def test_two_requests_for_the_same_blocks_both_have_to_end() -> None:
    """The second request's expectation outlives the first's."""
    expected = ExpectedBlocks()
    first, second = expected.expect(1, [10], 0), expected.expect(1, [10], 0)
    expected.end(first)
    expected.end(first)
    assert expected.extend(1, [10], 0) == 1
    expected.end(second)
    assert len(expected) == 0


def test_an_expectation_ends_after_its_time() -> None:
    """Until then it counts, afterwards not."""
    expected = ExpectedBlocks()
    expected.end_at(expected.expect(1, [10], 0), 5.0)
    expected.settle(4.9)
    assert expected.extend(1, [10], 0) == 1
    expected.settle(5.0)
    assert expected.extend(1, [10], 0) == 0


def test_a_long_prompt_is_expected_to_a_sixteenth() -> None:
    """What follows a held beginning is nearly all seen, and never more than was placed."""
    expected = ExpectedBlocks()
    chain = list(range(1_000, 2_000))
    expected.expect(1, chain, held_blocks=100)
    for longer in (chain, [*chain, 1, 2], chain[:777]):
        seen = expected.extend(1, longer, held_blocks=100)
        most = min(len(longer), len(chain))
        assert most - most // 16 <= seen <= most
    assert expected.extend(1, chain, held_blocks=50) == 50
