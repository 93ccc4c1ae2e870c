"""Scorers: each gives candidates a cost in prefill tokens. They are summed; the lowest sum wins.

One currency, the time of a GPU that prefills, makes locality and load comparable. A new scorer is a function here and
a line in `policies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.config_placement import WeightsConfig
from router.scheduling.candidate import Candidate


@dataclass(slots=True, eq=False)
class Market:
    """What all candidates of one prompt share.

    Attributes:
        price: What an uncached token of this prompt costs, against 1 for a token that already waits.
        weights: The operator's.
        pace: How long each candidate takes for a token, against the mean of all; None: they are about alike.
    """

    price: float
    weights: WeightsConfig
    pace: Sequence[float] | None = None


ALIKE = 1.25
"""Speeds within this factor of the mean are taken to be the same."""
Scorer = Callable[[Sequence[Candidate], Market], list[float]]
"""Gives each candidate its cost: one call for all of them, since there may be hundreds and each request is scored."""


def price_of(candidates: Sequence[Candidate], weights: WeightsConfig) -> float:
    """Return the price of recomputing a token.

    It is above 1 because recomputing takes capacity from everyone, and grows with the fleet's mean backlog in seconds:
    idle, the nearest to idle wins; under pressure, reuse does.
    """
    if not candidates:
        return weights.price_base
    backlog_s = 0.0
    for item in candidates:
        if item.backlog_tokens:
            backlog_s += item.backlog_tokens / item.prefill_tokens_per_s
    backlog_s /= len(candidates)
    return max(weights.price_base, min(weights.price_max, weights.price_base + weights.price_per_backlog_s * backlog_s))


def pace_of(candidates: Sequence[Candidate]) -> list[float] | None:
    """Return how long each takes to compute a token, against the mean; None where all are about alike.

    Learned speeds differ by chance among equal replicas too: within a quarter of the mean they count as the same, or
    equal cold prompts would go to another replica at each router, and with each lesson.
    """
    speeds = [candidate.prefill_tokens_per_s for candidate in candidates]
    mean = sum(speeds) / len(speeds)
    slow, fast = mean / ALIKE, mean * ALIKE
    if slow <= min(speeds) and max(speeds) <= fast:
        return None
    return [1.0 if slow <= speed <= fast else mean / speed for speed in speeds]


def queue(candidates: Sequence[Candidate], market: Market) -> list[float]:
    """Tokens that are computed before this prompt's."""
    if market.pace is None:
        return [candidate.backlog_tokens for candidate in candidates]
    return [pace * candidate.backlog_tokens for pace, candidate in zip(market.pace, candidates, strict=True)]


def recompute(candidates: Sequence[Candidate], market: Market) -> list[float]:
    """This prompt's own tokens that are not cached there, at the market's price."""
    price, weights = market.price, market.weights
    cpu_share, disk_share = weights.cpu_tier_share, weights.disk_tier_share
    costs = [price * candidate.uncached_tokens(cpu_share, disk_share) for candidate in candidates]
    return costs if market.pace is None else [pace * cost for pace, cost in zip(market.pace, costs, strict=True)]


def running(candidates: Sequence[Candidate], market: Market) -> list[float]:
    """What running requests slow a prefill."""
    tokens = market.weights.running_tokens
    return [tokens * candidate.running for candidate in candidates]


def kv_pressure(candidates: Sequence[Candidate], market: Market) -> list[float]:
    """What a nearly full KV cache costs: prompts wait for blocks there, and running ones may be preempted."""
    weights = market.weights
    scale = weights.kv_pressure_tokens / (1.0 - weights.kv_pressure_from)
    return [scale * max(0.0, candidate.kv_usage_share - weights.kv_pressure_from) for candidate in candidates]


SCORERS: dict[str, Scorer] = {"queue": queue, "recompute": recompute, "running": running, "kv_pressure": kv_pressure}
