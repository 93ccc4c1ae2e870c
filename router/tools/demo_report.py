"""What the demo's records add up to: a row a policy, the bound, and how good the router's predictions were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.driver.records import Record
from loadtest.report.measures import by_replica, hit_rate
from loadtest.report.percentiles import quantile
from loadtest.workloads.lru_bound import Bound, lru_bound
from loadtest.workloads.rendering import ChatText
from router.kv.engine_metrics import totals
from router.tools.demo_traffic import Exchange


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's run.

    Attributes:
        policy: Its name in the table.
        requests: How many were sent.
        failed: How many of them have no complete answer.
        hit_rate: Cached tokens that engines delivered over prompt tokens, 0 to 1.
        ttft_p50_s: Median time to first token, in seconds.
        ttft_p90_s: 90th percentile of it.
        spread: Requests of the busiest replica over the mean of all; 1 is even.
        mean_in_flight: Requests in flight, on average from the first sent to the last answered.
        evicted_blocks: Per replica, as its engine's events say.
    """

    policy: str
    requests: int
    failed: int
    hit_rate: float
    ttft_p50_s: float
    ttft_p90_s: float
    spread: float
    mean_in_flight: float
    evicted_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Predictions:
    """How the router's matched tokens compare with the cached tokens that engines delivered; shares of 0 to 1."""

    within_a_block: float
    above: float
    below: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed; NaN without values."""
    return quantile(values, share) if values else math.nan


def histogram_quantile(exposition: str, name: str, share: float) -> float:
    """Return a quantile of a Prometheus histogram, all its series together, interpolated within its bucket.

    NaN where the histogram is missing or empty, or the quantile lies above its last finite bound.
    """
    buckets: dict[float, float] = {}
    for line in exposition.splitlines():
        if line.startswith(f"{name}_bucket{{"):
            labels, value = line.rsplit(" ", 1)
            bound = float(labels.split('le="')[1].split('"')[0])
            buckets[bound] = buckets.get(bound, 0.0) + float(value)
    wanted = share * buckets.get(math.inf, 0.0)
    below_bound, below_count = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= wanted > 0 and math.isfinite(bound):
            return below_bound + (bound - below_bound) * (wanted - below_count) / (count - below_count)
        below_bound, below_count = bound, count
    return math.nan


def make_row(policy: str, records: Sequence[Record], replicas: int, evicted_blocks: Sequence[int]) -> Row:
    """Add up one run over `replicas` replicas."""
    ttfts = [record.ttft_s for record in records if record.ttft_s is not None]
    counts = by_replica(records).values()
    ends = [record.sent_s + record.total_s for record in records]
    duration_s = max(ends) - min(record.sent_s for record in records) if records else 0.0
    return Row(
        policy=policy,
        requests=len(records),
        failed=sum(record.cause is not None for record in records),
        hit_rate=hit_rate(records) or 0.0,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p90_s=percentile(ttfts, 0.9),
        spread=max(counts) * replicas / sum(counts) if counts else math.nan,
        mean_in_flight=sum(record.total_s for record in records) / duration_s if duration_s else 0.0,
        evicted_blocks=tuple(evicted_blocks),
    )


def judge_predictions(records: Sequence[Record], block_size: int) -> Predictions:
    """Compare prediction and delivery of each request that has both."""
    differences = [
        record.cached_tokens - record.matched_tokens
        for record in records
        if record.cached_tokens is not None and record.matched_tokens is not None
    ]
    count = len(differences) or 1
    return Predictions(
        within_a_block=sum(abs(difference) <= block_size for difference in differences) / count,
        above=sum(difference > block_size for difference in differences) / count,
        below=sum(difference < -block_size for difference in differences) / count,
    )


def make_bound(exchanges: Sequence[Exchange], text: ChatText, num_blocks: int, block_size: int) -> Bound:
    """Serve the same requests, in the order of sending, from one cache of `num_blocks` blocks.

    Raises:
        ValueError: A prompt has other tokens here than in the engine, so that the bound would be of other requests.
    """
    answered = [exchange for exchange in exchanges if exchange.record.cause is None]
    prompts = text.token_ids([exchange.messages for exchange in answered])
    requests: list[tuple[list[int], list[int]]] = []
    for exchange, prompt in zip(answered, prompts, strict=True):
        answer = exchange.answer
        if answer.prompt_tokens is not None and answer.prompt_tokens != len(prompt):
            raise ValueError(f"a prompt has {len(prompt)} tokens here and {answer.prompt_tokens} in the engine")
        complete = len(answer.token_ids) == answer.completion_tokens
        requests.append((prompt, answer.token_ids if complete else text.encode(answer.text)))
    return lru_bound(requests, num_blocks, block_size)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The router's ledger beside the engines' own counters, and beside what the clients were told; in tokens."""

    ledger_prompt: int
    ledger_delivered: int
    engine_queries: int
    engine_hits: int

    @property
    def holds(self) -> bool:
        """Whether the sums are the same to the token."""
        return (self.ledger_prompt, self.ledger_delivered) == (self.engine_queries, self.engine_hits)


def agreement(ledger: Mapping[str, Any], engines: Sequence[str]) -> Agreement:
    """Compare `/admin/ledger` with the engines' `/metrics`, of which nobody else sent anything to them.

    Args:
        engines: The text of each engine's metrics.
    """
    counted = [totals(text) for text in engines]
    tokens = ledger["total"]["tokens"]
    return Agreement(
        tokens["prompt"],
        tokens["delivered"],
        sum(one.query_tokens or 0 for one in counted),
        sum(one.hit_tokens or 0 for one in counted),
    )
