"""Who sends what when."""

from __future__ import annotations

import random

import pytest

from loadtest.workloads.schedule import Stage, arrival_times, closed_loop, read_stages


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


def test_stages_are_read_as_they_are_written() -> None:
    """Rates by seconds; two rates are a ramp. What is something else, or no time at all, is refused."""
    stages = read_stages("2x30, 2-8.5x60")
    assert stages == (Stage(2, 30), Stage(2, 60, 8.5))
    assert read_stages(",".join(map(str, stages))) == stages
    for wrong in ("", "2", "2x0", "-2x30", "2x30,x"):
        with pytest.raises(ValueError, match="is no stage"):
            read_stages(wrong)


@pytest.mark.parametrize("stage", [Stage(-1, 10), Stage(1, 0), Stage(1, 10, -5)])
def test_a_stage_that_makes_no_sense_is_refused(stage: Stage) -> None:
    """Rather than an endless loop."""
    with pytest.raises(ValueError, match="a stage needs"):
        list(arrival_times([stage], random.Random(1)))
