"""How the demo's results are shown: a table and measures for people, one line of JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.workloads.lru_bound import Bound
from router.tools.demo_plan import DemoPlan
from router.tools.demo_report import Agreement, Predictions, Row


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured.

    Attributes:
        plan: What was run.
        rows: One a policy, in order; the last is the one that `predictions` belong to.
        bounds: For each row: one cache as large as the fleet's, over this row's requests in their order.
        predictions: Of the last row.
        agreements: For each row: the router's reuse ledger beside the engines' own counters.
        feed_lag_p50_s: From Redis to the router's index, under the last row's traffic; NaN where none was measured.
        index_lag_p50_s: From an engine's event to the router's index, in the quiet after it.
        duration_s: Of the demo as a whole.
    """

    plan: DemoPlan
    rows: Sequence[Row]
    bounds: Sequence[Bound]
    predictions: Predictions
    agreements: Sequence[Agreement]
    feed_lag_p50_s: float
    index_lag_p50_s: float
    duration_s: float

    def to_json(self) -> str:
        """Return one line; figures that could not be measured are null.

        `bound_hit_rate` is the last row's; `mean_in_flight` and `evicted_blocks` are the least over all rows, so that
        they say of every row how much it was under pressure.
        """
        rows = [
            {
                "policy": row.policy,
                "requests": row.requests,
                "hit_rate": _number(row.hit_rate),
                "ttft_p50_s": _number(row.ttft_p50_s),
                "ttft_p90_s": _number(row.ttft_p90_s),
                "spread": _number(row.spread),
                "bound_hit_rate": _number(bound.hit_rate),
                "mean_in_flight": _number(row.mean_in_flight),
                "evicted_blocks": sum(row.evicted_blocks),
            }
            for row, bound in zip(self.rows, self.bounds, strict=True)
        ]
        return json.dumps(
            {
                "rows": rows,
                "bound_hit_rate": _number(self.bounds[-1].hit_rate),
                "predicted_equals_delivered_share": _number(self.predictions.within_a_block),
                "mean_in_flight": _number(min(row.mean_in_flight for row in self.rows)),
                "evicted_blocks": min(sum(row.evicted_blocks) for row in self.rows),
                "ledger_equals_engines": all(one.holds for one in self.agreements),
            }
        )


def show(results: Results, console: Console) -> None:
    """Print the table and the measures."""
    console.print(_table(results))
    for line in measures(results):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def measures(results: Results) -> list[str]:
    """Return what else was measured, a sentence each."""
    plan, bound, predictions, last = results.plan, results.bounds[-1], results.predictions, results.rows[-1]
    lines = [
        f"cache: {plan.num_blocks:,} blocks a replica; by default chosen so that what is in use at one time fits into "
        "the fleet's caches together, and not into one replica's",
        f"bound: one cache of {plan.fleet_blocks:,} blocks, as large as the fleet's together, over each row's requests "
        f"in the order sent; {bound.hit_rate:.1%} for {last.policy}",
        f"pressure: {bound.distinct_blocks:,} distinct blocks, {bound.distinct_blocks / plan.fleet_blocks:.1f} times "
        f"the fleet's cache; evicted per replica, at least: "
        + ", ".join(f"{row.policy} {min(row.evicted_blocks):,}" for row in results.rows),
        "in flight on average: " + ", ".join(f"{row.policy} {row.mean_in_flight:.1f}" for row in results.rows),
        f"{last.policy}: cached tokens as predicted, within a block, for {predictions.within_a_block:.1%} of requests; "
        f"more for {predictions.above:.1%}, fewer for {predictions.below:.1%}",
    ]
    lines.append(
        f"{last.policy}: from an engine's event to the router's index p50 {results.index_lag_p50_s * 1000:.1f} ms, "
        f"quiet; from Redis to the index p50 {results.feed_lag_p50_s * 1000:.1f} ms, under the traffic"
    )
    lines.append(_ledger(results))
    failed = {row.policy: row.failed for row in results.rows if row.failed}
    if failed:
        lines.append("FAILED requests: " + ", ".join(f"{policy} {count}" for policy, count in failed.items()))
    lines.append(f"took {results.duration_s:.0f} s")
    return lines


def _ledger(results: Results) -> str:
    wrong = [
        f"{row.policy} {one.ledger_prompt:,} and {one.ledger_delivered:,} for {one.engine_queries:,} and "
        f"{one.engine_hits:,}"
        for row, one in zip(results.rows, results.agreements, strict=True)
        if not one.holds
    ]
    if wrong:
        return "LEDGER differs from what the engines counted (prompt and cached tokens): " + "; ".join(wrong)
    last, policy = results.agreements[-1], results.rows[-1].policy
    return (
        "ledger: under every policy the router's sums are what the engines counted themselves; "
        f"{policy}: {last.ledger_prompt:,} prompt tokens, {last.ledger_delivered:,} of them cached"
    )


def _table(results: Results) -> Table:
    plan = results.plan
    title = f"{plan.replicas} simulated replicas of {plan.num_blocks:,} blocks, {plan.users} users"
    table = Table(box=box.SIMPLE_HEAD, title=title, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("policy", no_wrap=True)
    for heading in ("requests", "hit rate", "TTFT p50", "TTFT p90", "spread", "of bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, bound in zip(results.rows, results.bounds, strict=True):
        share = row.hit_rate / bound.hit_rate if bound.hit_rate else math.nan
        table.add_row(
            row.policy,
            f"{row.requests:,}",
            f"{row.hit_rate:.1%}",
            f"{row.ttft_p50_s * 1000:.0f} ms",
            f"{row.ttft_p90_s * 1000:.0f} ms",
            f"{row.spread:.2f}",
            f"{share:.0%}",
        )
    return table


def _number(value: float) -> Any:
    return None if math.isnan(value) else round(value, 6)
