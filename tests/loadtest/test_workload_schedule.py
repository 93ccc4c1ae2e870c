"""Who sends what when."""

from __future__ import annotations

import random

import pytest

from loadtest.workloads.schedule import Stage, arrival_times, closed_loop, open_arrivals, staged_arrivals


def test_a_closed_loop_hands_each_session_out_once() -> None:
    """Users take from one queue: whoever is free gets the next, none is sent twice or left out."""
    lanes = closed_loop(range(7), users=3)
    taken = [next(lanes[user].sessions) for user in (0, 1, 2, 2, 2, 0)]
    assert taken == [0, 1, 2, 3, 4, 5]
    assert list(lanes[1].sessions) == [6]


def test_a_closed_loop_ramps_up_evenly() -> None:
    """The first user begins at once, the last at the end of the ramp."""
    assert [lane.start_s for lane in closed_loop([], users=5, ramp_s=2.0)] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_a_single_user_begins_at_once() -> None:
    """A ramp of one user is no division by zero."""
    assert [lane.start_s for lane in closed_loop([], users=1, ramp_s=2.0)] == [0.0]


def test_open_arrivals_keep_their_rate() -> None:
    """2,000 arrivals at 50 a second take 40 s (the sum's standard deviation is 0.9 s), each lane one session."""
    lanes = open_arrivals(range(2_000), rate_per_s=50, seed=4)
    starts = [lane.start_s for lane in lanes]
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(40, abs=4.5)
    assert [list(lane.sessions) for lane in lanes[:3]] == [[0], [1], [2]]


def test_open_arrivals_depend_on_the_seed() -> None:
    """One seed gives one schedule."""
    one, same, other = ([lane.start_s for lane in open_arrivals(range(9), 5, seed)] for seed in (1, 1, 2))
    assert one == same != other


def test_a_rate_of_nothing_is_refused() -> None:
    """No arrivals at all is a mistake, not an endless wait."""
    with pytest.raises(ValueError, match="over 0"):
        open_arrivals(range(3), rate_per_s=0, seed=1)


def test_stages_have_their_rates() -> None:
    """Of 200 s at 10 a second, 100 s at none and a ramp of 200 s from 0 to 20, about 2,000, 0 and 2,000 arrive."""
    stages = [Stage(10, 200), Stage(0, 100), Stage(0, 200, end_rate_per_s=20)]
    times = list(arrival_times(stages, random.Random(1)))
    assert times == sorted(times)
    counts = [sum(begin <= at < end for at in times) for begin, end in ((0, 200), (200, 300), (300, 500))]
    assert counts[1] == 0
    for count in (counts[0], counts[2]):
        assert abs(count - 2_000) < 4 * 2_000**0.5  # four standard deviations of a Poisson count
    # A ramp's second half has three quarters of its arrivals.
    assert sum(at >= 400 for at in times) / counts[2] == pytest.approx(0.75, abs=0.05)


def test_stages_end_with_the_sessions_or_their_time() -> None:
    """Whichever comes first; the same seed has the same times."""
    few = list(staged_arrivals(["a", "b"], [Stage(100, 10)], seed=3))
    assert [next(lane.sessions) for lane in few] == ["a", "b"]
    many = list(staged_arrivals(map(str, range(10_000)), [Stage(100, 10)], seed=3))
    assert len(many) < 2_000
    assert [lane.start_s for lane in many[:2]] == [lane.start_s for lane in few]


@pytest.mark.parametrize("stage", [Stage(-1, 10), Stage(1, 0), Stage(1, 10, -5)])
def test_a_stage_that_makes_no_sense_is_refused(stage: Stage) -> None:
    """Rather than an endless loop."""
    with pytest.raises(ValueError, match="a stage needs"):
        list(arrival_times([stage], random.Random(1)))
