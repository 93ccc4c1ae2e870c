"""Scorers: each gives a candidate a cost in prefill tokens. They are summed; the lowest sum wins.

One currency, the time of a GPU that prefills, makes locality and load comparable. A new scorer is a function here and
a line in `policies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.config import WeightsConfig
from router.scheduling.candidate import Candidate


@dataclass(frozen=True, slots=True)
class Market:
    """What all candidates of one prompt share.

    Attributes:
        price: What an uncached token of this prompt costs, against 1 for a token that already waits.
        weights: The operator's.
    """

    price: float
    weights: WeightsConfig


Scorer = Callable[[Candidate, Market], float]


def price_of(candidates: Sequence[Candidate], weights: WeightsConfig) -> float:
    """Return the price of recomputing a token.

    It is above 1 because recomputing takes capacity from everyone, and grows with the fleet's mean backlog in seconds:
    idle, the nearest to idle wins; under pressure, reuse does.
    """
    if not candidates:
        return weights.price_base
    backlog_s = sum(item.backlog_tokens / item.prefill_tokens_per_s for item in candidates) / len(candidates)
    return max(weights.price_base, min(weights.price_max, weights.price_base + weights.price_per_backlog_s * backlog_s))


def queue(candidate: Candidate, market: Market) -> float:
    """Tokens that are computed before this prompt's."""
    return candidate.backlog_tokens


def recompute(candidate: Candidate, market: Market) -> float:
    """This prompt's own tokens that are not cached there, at the market's price."""
    weights = market.weights
    return market.price * candidate.uncached_tokens(weights.cpu_tier_share, weights.disk_tier_share)


def running(candidate: Candidate, market: Market) -> float:
    """What running requests slow a prefill."""
    return market.weights.running_tokens * candidate.running


SCORERS: dict[str, Scorer] = {"queue": queue, "recompute": recompute, "running": running}
