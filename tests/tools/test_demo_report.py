"""The demo's arithmetic, on records made by hand."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from loadtest.driver.records import Record
from loadtest.workloads.answers import StreamedAnswer
from loadtest.workloads.conversations import Kind
from loadtest.workloads.lru_bound import Bound
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.text import tokenizer_folder
from router.tools.demo_output import Results, measures, show
from router.tools.demo_plan import DemoPlan
from router.tools.demo_report import (
    Agreement,
    Predictions,
    Row,
    agreement,
    histogram_quantile,
    judge_predictions,
    make_bound,
    make_row,
    percentile,
)
from router.tools.demo_traffic import Exchange

TEXT = ChatText.load(tokenizer_folder())


def record(prompt: int | None = 100, cached: int | None = 0, predicted: int | None = 0, **more: Any) -> Record:
    made = Record("chat-0", 0, Kind.CHAT, 0, 0.0, more.pop("sent_s", 0.0), **more)
    made.prompt_tokens, made.cached_tokens, made.matched_tokens = prompt, cached, predicted
    return made


def exchange(prompt: int, text: str) -> Exchange:
    answer = StreamedAnswer(prompt_tokens=prompt, cached_tokens=0, completion_tokens=1, done=True)
    return Exchange(record(prompt), [{"role": "user", "content": text}], answer)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.9, 9), (0.91, 10), (1.0, 10), (0.0, 1)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    """Nearest rank: of 1 to 10, half do not exceed 5 and nine tenths do not exceed 9."""
    assert percentile(list(range(10, 0, -1)), share) == expected


def test_no_values_have_no_percentile() -> None:
    """NaN, rather than a 0 that looks like an excellent TTFT."""
    assert math.isnan(percentile([], 0.5))


def test_a_hit_rate_is_over_tokens_not_requests() -> None:
    """A long prompt counts more: (90 + 0) of (100 + 900) tokens are 9%."""
    assert make_row("p", [record(100, 90), record(900, 0)], 4, []).hit_rate == 0.09


def test_a_spread_is_the_busiest_over_the_mean() -> None:
    """Three on one replica and one on another, of four: mean 1, busiest 3."""
    records = [record(replica=replica) for replica in ("r0", "r0", "r0", "r1")]
    assert make_row("p", records, 4, []).spread == 3.0


def test_requests_in_flight_are_a_mean_over_time() -> None:
    """2 s from 0 and 2 s from 2: one in flight over 4 s; a third of 4 s makes two."""
    records = [record(sent_s=0.0, total_s=2.0), record(sent_s=2.0, total_s=2.0)]
    assert make_row("p", records, 4, []).mean_in_flight == 1.0
    assert make_row("p", [*records, record(sent_s=0.0, total_s=4.0)], 4, []).mean_in_flight == 2.0


def test_failed_requests_are_counted_and_have_no_ttft() -> None:
    """A failure neither hides nor makes a figure better."""
    row = make_row("p", [record(ttft_s=0.5), record(prompt=None, cached=None, cause="http-503")], 4, [])
    assert (row.requests, row.failed, row.ttft_p50_s, row.ttft_p90_s) == (2, 1, 0.5, 0.5)


def test_predictions_within_a_block_count_as_met() -> None:
    """Block 16: +16 and -16 are met, +32 is above, -17 is below; without a figure a request does not count."""
    records = [record(cached=cached, predicted=32) for cached in (32, 48, 16, 64, 15)]
    records += [record(cached=None, predicted=32), record(cached=32, predicted=None)]
    assert judge_predictions(records, 16) == Predictions(within_a_block=0.6, above=0.2, below=0.2)


def test_the_bound_serves_what_was_sent_in_order() -> None:
    """The same prompt twice: all its whole blocks but the one with the last token hit the second time."""
    text = "an answer is a question " * 20
    tokens = len(TEXT.token_ids([[{"role": "user", "content": text}]])[0])
    bound = make_bound([exchange(tokens, text), exchange(tokens, text)], TEXT, 100, 16)
    assert (bound.prompt_tokens, bound.cached_tokens) == (2 * tokens, (tokens - 1) // 16 * 16)


def test_a_bound_of_other_prompts_is_refused() -> None:
    """When the engine counts other tokens than we do, the bound would judge other requests."""
    with pytest.raises(ValueError, match="5 in the engine"):
        make_bound([exchange(5, "hello")], TEXT, 100, 16)


def test_a_histogram_quantile_is_interpolated_over_all_series() -> None:
    """10 of 20 lie in (0.01, 0.02], 5 below: the median is half way through that bucket."""
    text = "\n".join(
        f'x_bucket{{lane="{lane}",le="{bound}"}} {count}'
        for lane, counts in (("0", (3, 9, 12)), ("1", (2, 6, 8)))
        for bound, count in zip(("0.01", "0.02", "+Inf"), counts, strict=True)
    )
    assert histogram_quantile(text, "x", 0.5) == pytest.approx(0.015)


def test_a_missing_histogram_has_no_quantile() -> None:
    """NaN, as nothing was measured."""
    assert math.isnan(histogram_quantile('y_bucket{le="+Inf"} 3', "x", 0.5))


def results(hit_rates: tuple[float, ...]) -> Results:
    names = ("round-robin", "least-loaded", "cost-approximate", "cost")
    rows = [
        Row(name, 10, 0, rate, 0.1, math.nan, 1.5, in_flight, (3, 4, 5, evicted))
        for name, rate, in_flight, evicted in zip(names, hit_rates, (18, 17.25, 20, 19), (9, 8, 6, 7), strict=True)
    ]
    bounds = [Bound(1_000, hits, 5_000, 10) for hits in (500, 600, 700, 800)]
    agreements = [Agreement(1_000, 600, 1_000, 600)] * 4
    return Results(DemoPlan(), rows, bounds, Predictions(0.97, 0.02, 0.01), agreements, math.nan, 0.01, 100.0)


def test_the_json_line_has_the_promised_keys() -> None:
    """What scripts rely on: keys, policy names, and null where nothing could be measured."""
    line = json.loads(results((0.2, 0.2, 0.6, 0.7)).to_json())
    assert list(line) == [
        "rows",
        "bound_hit_rate",
        "predicted_equals_delivered_share",
        "mean_in_flight",
        "evicted_blocks",
        "ledger_equals_engines",
    ]
    assert [row["policy"] for row in line["rows"]] == ["round-robin", "least-loaded", "cost-approximate", "cost"]
    assert line["rows"][3] == {
        "policy": "cost",
        "requests": 10,
        "hit_rate": 0.7,
        "ttft_p50_s": 0.1,
        "ttft_p90_s": None,
        "spread": 1.5,
        "bound_hit_rate": 0.8,
        "mean_in_flight": 19,
        "evicted_blocks": 19,
    }
    assert (line["bound_hit_rate"], line["mean_in_flight"], line["evicted_blocks"]) == (0.8, 17.25, 18)


def test_the_pressure_is_the_least_of_all_rows() -> None:
    """A row that was under less than the others is not hidden by the last."""
    line = json.loads(results((0.2, 0.2, 0.6, 0.7)).to_json())
    assert (line["mean_in_flight"], line["evicted_blocks"]) == (17.25, 18)


def test_each_row_is_compared_with_its_own_bound() -> None:
    """Under each policy the requests come in another order: 0.2 of 0.5, 0.3 of 0.6, 0.35 of 0.7, 0.6 of 0.8."""
    console = Console(file=io.StringIO(), width=120)
    show(results((0.2, 0.3, 0.35, 0.6)), console)
    lines = console.file.getvalue().splitlines()
    shares = [line.split()[-1] for line in lines if line.split()[:1] in (["round-robin"], ["least-loaded"])]
    shares += [line.split()[-1] for line in lines if line.split()[:1] in (["cost-approximate"], ["cost"])]
    assert shares == ["40%", "50%", "50%", "75%"]


def test_failures_are_shown() -> None:
    """A run with failed requests says so beside its figures."""
    good = results((0.2, 0.2, 0.6, 0.7))
    assert not any("FAILED" in line for line in measures(good))
    bad_row = Row("cost", 10, 2, 0.7, 0.1, 0.2, 1.5, 17.25, (1,))
    bad = Results(good.plan, [bad_row], good.bounds[:1], good.predictions, good.agreements[:1], math.nan, 0.01, 1.0)
    assert "FAILED requests: cost 2" in measures(bad)


def test_the_ledger_is_held_against_the_engines_counters() -> None:
    """The sums of all engines, and a difference of one token is shown."""
    metrics = 'vllm:prefix_cache_queries_total{engine="0"} %d.0\nvllm:prefix_cache_hits_total{engine="0"} %d.0\n'
    ledger = {"total": {"tokens": {"prompt": 900, "delivered": 500}}}
    assert agreement(ledger, [metrics % (400, 300), metrics % (500, 200)]).holds
    wrong = agreement(ledger, [metrics % (400, 300), metrics % (500, 201)])
    assert not wrong.holds
    good = results((0.2, 0.2, 0.6, 0.7))
    assert any(line.startswith("ledger: under every policy") for line in measures(good))
    bad = dataclasses.replace(good, agreements=[*good.agreements[:3], wrong])
    assert any("LEDGER differs" in line and "cost 900 and 500 for 900 and 501" in line for line in measures(bad))
