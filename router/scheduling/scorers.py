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
    """

    price: float
    weights: WeightsConfig


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


def queue(candidates: Sequence[Candidate], market: Market) -> list[float]:
    """Tokens that are computed before this prompt's."""
    return [candidate.backlog_tokens for candidate in candidates]


def recompute(candidates: Sequence[Candidate], market: Market) -> list[float]:
    """This prompt's own tokens that are not cached there, at the market's price."""
    price, weights = market.price, market.weights
    cpu_share, disk_share = weights.cpu_tier_share, weights.disk_tier_share
    return [price * candidate.uncached_tokens(cpu_share, disk_share) for candidate in candidates]


def running(candidates: Sequence[Candidate], market: Market) -> list[float]:
    """What running requests slow a prefill."""
    tokens = market.weights.running_tokens
    return [tokens * candidate.running for candidate in candidates]


SCORERS: dict[str, Scorer] = {"queue": queue, "recompute": recompute, "running": running}
