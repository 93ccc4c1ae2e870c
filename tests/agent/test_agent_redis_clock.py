"""What Redis' clock shows by its answers; in virtual time."""

from __future__ import annotations

import pytest

from replica.agent.redis_clock import RedisClock


def test_nothing_is_known_before_an_answer() -> None:
    """A guess would make late what is not."""
    assert RedisClock().at(10.0) is None


def test_a_slow_answer_does_not_widen_what_a_quick_one_told() -> None:
    """The time that it shows at least is the quick one's, whichever came first."""
    for answers in ([(10.0, 10.01, 1_000.0), (20.0, 23.0, 1_010.5)], [(0.0, 3.0, 990.5), (10.0, 10.01, 1_000.0)]):
        clock = RedisClock()
        for answer in answers:
            clock.note(*answer)
        assert clock.at(30.0) == pytest.approx(1_019.99)


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0])
def test_a_clock_that_was_set_is_followed(step_s: float) -> None:
    """So is another server's, after a failover: the next answer is believed alone."""
    clock = RedisClock()
    clock.note(10.0, 10.01, 1_000.0)
    clock.note(20.0, 20.02, 1_010.0 + step_s)
    assert clock.at(30.0) == pytest.approx(1_019.98 + step_s)


def test_clocks_that_drift_stay_within_an_answers_time() -> None:
    """One that gains a second in an hour is off by no more than the answers took."""
    clock = RedisClock()
    for second in range(7_200):
        clock.note(second, second + 0.01, 1_000.0 + second * 3_601 / 3_600)
        found = clock.at(second + 0.01)
        assert found is not None
        assert abs(found - (1_000.0 + second * 3_601 / 3_600)) < 0.02
