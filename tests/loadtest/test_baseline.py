"""Verdicts against a baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.report.baseline import Comparison, Stored, Verdict, compare, read, worst, write
from loadtest.report.measures import Measure
from router.errors import ConfigurationError

SETTINGS = {"workload": "mixed", "replicas": 4}


def verdict(name: str, before: tuple[float, float | None], after: tuple[float, float | None]) -> Comparison:
    old, new = (Stored({name: Measure(value, error, 100)}, False) for value, error in (before, after))
    (found,) = compare("mixed/cost", old, new)
    return found


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        ("hit_rate", (0.80, 0.005), (0.70, 0.005), Verdict.WORSE),
        ("hit_rate", (0.70, 0.005), (0.80, 0.005), Verdict.BETTER),
        ("hit_rate", (0.80, 0.001), (0.801, 0.001), Verdict.SAME),
        ("hit_rate", (0.80, 0.1), (0.70, 0.1), Verdict.UNCLEAR),  # the interval is 28 points wide
        ("hit_rate", (0.80, 0.001), (0.793, 0.001), Verdict.SAME),  # a difference, and too small to mind
        ("ttft_p90_s", (0.10, 0.002), (0.15, 0.002), Verdict.WORSE),
        ("ttft_p90_s", (0.15, 0.002), (0.10, 0.002), Verdict.BETTER),
        ("ttft_p90_s", (0.10, 0.001), (0.101, 0.001), Verdict.SAME),
        ("ttft_p90_s", (0.10, None), (0.15, None), Verdict.UNCLEAR),
        ("error_share", (0.0, 0.0), (0.05, 0.01), Verdict.WORSE),
    ],
)
def test_verdicts(
    name: str, before: tuple[float, float | None], after: tuple[float, float | None], expected: Verdict
) -> None:
    """By the difference, its interval and what nobody minds."""
    assert verdict(name, before, after).verdict is expected


def test_the_interval_is_of_the_difference() -> None:
    """Standard errors of 3 and 4 points make one of 5: 1.96 times it on both sides."""
    found = verdict("hit_rate", (0.5, 0.03), (0.6, 0.04))
    assert (found.low, found.high) == pytest.approx((0.1 - 0.098, 0.1 + 0.098))


def test_times_that_the_generator_spoilt_have_no_verdict() -> None:
    """Its hit rate still has."""
    good, bad = {"hit_rate": 0.8, "ttft_p90_s": 0.1}, {"hit_rate": 0.5, "ttft_p90_s": 9.0}
    before, after = (
        Stored({name: Measure(value, 0.001, 100) for name, value in values.items()}, spoilt)
        for values, spoilt in ((good, False), (bad, True))
    )
    assert {each.measure: each.verdict for each in compare("x", before, after)} == {
        "hit_rate": Verdict.WORSE,
        "ttft_p90_s": Verdict.UNCLEAR,
    }


def test_one_measure_that_is_worse_is_enough() -> None:
    """Whatever the others are."""
    better, worse = (verdict("hit_rate", (0.7, 0.001), (after, 0.001)) for after in (0.8, 0.6))
    assert worst([better, worse]) is Verdict.WORSE
    assert worst([better]) is Verdict.BETTER
    assert worst([]) is Verdict.UNCLEAR


def test_a_baseline_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    """With its errors and reasons."""
    path = tmp_path / "baselines" / "quick.json"
    runs = {"mixed/cost": Stored({"hit_rate": Measure(0.8, 0.01, 300), "ttft_p99_s": Measure(None, why="few")}, True)}
    write(path, SETTINGS, runs)
    assert read(path, SETTINGS) == runs


def test_a_baseline_of_other_traffic_is_refused(tmp_path: Path) -> None:
    """Every setting that differs is named."""
    path = tmp_path / "quick.json"
    write(path, SETTINGS, {})
    with pytest.raises(ConfigurationError) as caught:
        read(path, {"workload": "chat", "replicas": 8})
    assert [problem.message.split("with ")[1] for problem in caught.value.problems] == [
        "replicas 4, not 8",
        "workload 'mixed', not 'chat'",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}'])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    """By name of the file."""
    path = tmp_path / "quick.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="is no baseline"):
        read(path, SETTINGS)
    with pytest.raises(ConfigurationError, match="No such file"):
        read(tmp_path / "missing.json", SETTINGS)
