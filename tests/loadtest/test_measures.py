"""Measures of records made by hand."""

from __future__ import annotations

import random
from array import array

import pytest

from loadtest.driver.records import Record
from loadtest.report.measures import by_replica, by_stage, errors_by_cause, measure, time_line
from loadtest.workloads.conversations import Kind


def record(number: int, session: str | None = None, stage: int = 0, **more: object) -> Record:
    made = Record(session or f"s{number}", 0, Kind.CHAT, stage, float(number), float(number))
    made.ttft_s, made.total_s, made.replica = 0.1, 0.5, "r0"
    made.prompt_tokens, made.cached_tokens, made.output_tokens, made.matched_tokens = 100, 48, 10, 48
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_the_hit_rate_is_over_tokens() -> None:
    """0 of 900 and 100 of 100 are 10%; answers that do not tell are left out."""
    records = [
        record(0, prompt_tokens=900, cached_tokens=0),
        record(1, prompt_tokens=100, cached_tokens=100),
        record(2, cached_tokens=None),
    ]
    hit_rate = measure(records, 16)["hit_rate"]
    assert hit_rate.value == pytest.approx(0.1)
    assert hit_rate.samples == 2


def test_percentiles_without_enough_samples_are_refused() -> None:
    """100 requests have a p90 and no p99, and it is said why."""
    records = [record(number, ttft_s=number / 1_000) for number in range(1, 101)]
    measures = measure(records, 16)
    assert measures["ttft_p90_s"].value == pytest.approx(0.09)
    assert measures["ttft_p99_s"].value is None
    assert measures["ttft_p99_s"].why == "needs 1,000 samples, has 100"


def test_failures_count_as_failures_only() -> None:
    """One of four failed; its time is in no percentile."""
    records = [record(number) for number in range(3)] + [record(3, cause="timeout", ttft_s=None, total_s=300.0)]
    measures = measure(records, 16)
    assert measures["error_share"].value == 0.25
    assert measures["total_p50_s"].samples == 3
    assert errors_by_cause(records) == {"timeout": 1}


def test_predictions_are_right_within_a_block() -> None:
    """48 cached: 32 and 64 are, 31 is not."""
    records = [record(number, matched_tokens=matched) for number, matched in enumerate((32, 64, 31, None))]
    assert measure(records, 16)["as_predicted_share"].value == pytest.approx(2 / 3)


def test_a_replica_without_requests_counts_for_the_spread() -> None:
    """Three of four requests at one of four replicas: three times the mean."""
    records = [record(number, replica="r0" if number else "r1") for number in range(4)]
    assert measure(records, 16, replicas=4)["spread"].value == 3.0
    assert by_replica(records) == {"r0": 3, "r1": 1}


def test_the_standard_error_is_of_sessions() -> None:
    """Of 400 sessions that hit all or nothing at even odds it is that of a coin, 0.5 / sqrt(400) = 2.5%.

    With ten turns a session that hit alike it stays so: they are no new information.
    """
    rng = random.Random(1)
    hits = [100 * rng.randrange(2) for _ in range(400)]
    for turns in (1, 10):
        records = [
            record(number, session=f"s{number}", cached_tokens=hit)
            for number, hit in enumerate(hits)
            for _ in range(turns)
        ]
        error = measure(records, 16)["hit_rate"].standard_error
        assert error == pytest.approx(0.025, rel=0.3)  # of 100 resamples, known to 7%


def test_stages_and_spans_have_figures_of_their_own() -> None:
    """Each by what was due in it."""
    records = [record(number, stage=number // 50, ttft_s=0.1 + number // 50) for number in range(100)]
    stages = by_stage(records, 16)
    assert [stages[name]["ttft_p50_s"] for name in ("0", "1")] == pytest.approx([0.1, 1.1])
    assert stages["0"]["ttft_p90_s"] is None  # 50 are too few
    line = time_line(records)
    assert sum(span["requests"] for span in line) == 100
    assert line[0]["ttft_median_s"] == pytest.approx(0.1)


def test_a_record_comes_back_from_another_process() -> None:
    """With its gaps, as bytes on the way."""
    made = record(1, tenant=2, model="a0", cause="timeout")
    made.gaps_s.extend((0.25, 0.5))
    packed = made.pack()
    assert all(not isinstance(value, array) for value in packed)
    assert Record.unpack(packed) == made
