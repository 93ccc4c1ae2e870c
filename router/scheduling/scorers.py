"""Scorers: each gives candidates a cost in prefill tokens. They are summed; the lowest sum wins.

One currency, the time of a GPU that prefills, makes locality and load comparable. A new scorer is a function here and
a line in `policies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, mul, truediv

from router.config_placement import WeightsConfig
from router.scheduling.candidates import Candidates


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
Scorer = Callable[[Candidates, Market], Sequence[float]]
"""Gives each candidate its cost: one call for all of them, since there may be hundreds and each request is scored."""


def price_of(candidates: Candidates, weights: WeightsConfig) -> float:
    """Return the price of recomputing a token.

    It is above 1 because recomputing takes capacity from everyone, and grows with the fleet's mean backlog in seconds:
    idle, the nearest to idle wins; under pressure, reuse does.
    """
    if not candidates:
        return weights.price_base
    # One after the other, as the native twin adds: `sum` rounds otherwise from Python 3.12 on.
    backlogs_s = map(truediv, candidates.backlog_tokens, candidates.prefill_tokens_per_s)
    backlog_s: float = reduce(add, backlogs_s, 0.0) / len(candidates)
    return max(weights.price_base, min(weights.price_max, weights.price_base + weights.price_per_backlog_s * backlog_s))


def pace_of(candidates: Candidates) -> list[float] | None:
    """Return how long each takes to compute a token, against the mean; None where all are about alike.

    Learned speeds differ by chance among equal replicas too: within a quarter of the mean they count as the same, or
    equal cold prompts would go to another replica at each router, and with each lesson.
    """
    speeds = candidates.prefill_tokens_per_s
    mean = reduce(add, speeds, 0.0) / len(speeds)
    slow, fast = mean / ALIKE, mean * ALIKE
    if slow <= min(speeds) and max(speeds) <= fast:
        return None
    return [1.0 if slow <= speed <= fast else mean / speed for speed in speeds]


def queue(candidates: Candidates, market: Market) -> Sequence[float]:
    """Tokens that are computed before this prompt's."""
    tokens = candidates.backlog_tokens
    return tokens if market.pace is None else list(map(mul, market.pace, tokens))


def recompute(candidates: Candidates, market: Market) -> Sequence[float]:
    """This prompt's own tokens that are not cached there, at the market's price."""
    price, weights = market.price, market.weights
    uncached = candidates.uncached_tokens(weights.cpu_tier_share, weights.disk_tier_share)
    costs = [price * tokens for tokens in uncached]
    return costs if market.pace is None else list(map(mul, market.pace, costs))


def running(candidates: Candidates, market: Market) -> Sequence[float]:
    """What running requests slow a prefill."""
    tokens = market.weights.running_tokens
    return [tokens * requests for requests in candidates.running]


def kv_pressure(candidates: Candidates, market: Market) -> Sequence[float]:
    """What a nearly full KV cache costs: prompts wait for blocks there, and running ones may be preempted."""
    weights = market.weights
    scale = weights.kv_pressure_tokens / (1.0 - weights.kv_pressure_from)
    shares = candidates.kv_usage_shares or [0.0] * len(candidates)
    return [scale * max(0.0, share - weights.kv_pressure_from) for share in shares]


def held(candidates: Candidates, market: Market) -> Sequence[float]:
    """What requests hold of the cache: room that this prompt, and those who come back, will miss."""
    share, tokens = market.weights.held_share, candidates.held_tokens
    return [0.0] * len(candidates) if tokens is None else [share * each for each in tokens]


SCORERS: dict[str, Scorer] = {
    "queue": queue,
    "recompute": recompute,
    "running": running,
    "held": held,
    "kv_pressure": kv_pressure,
}
