"""The table of policies: which scorers, which picker. Operators choose one by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.config import PlacementConfig
from router.scheduling.candidate import Candidate
from router.scheduling.pickers import (
    AnyOne,
    Choice,
    ConsistentHash,
    LeastLoaded,
    LongestPrefix,
    LowestCost,
    Picker,
    PowerOfTwo,
    RoundRobin,
    Scored,
)
from router.scheduling.scorers import SCORERS, Market, Scorer, price_of


@dataclass(frozen=True, slots=True)
class Policy:
    """What a policy is made of.

    Attributes:
        scorers: Names in `SCORERS`; their sum is the cost.
        picker: Makes the picker, which may keep state.
        reads_index: Whether matches can change its choice.
    """

    scorers: tuple[str, ...]
    picker: Callable[[], Picker]
    reads_index: bool


COST_TERMS = ("queue", "recompute", "running")
POLICY_TABLE: dict[str, Policy] = {
    "cost": Policy(COST_TERMS, LowestCost, reads_index=True),
    "longest-prefix": Policy(COST_TERMS, LongestPrefix, reads_index=True),
    "least-loaded": Policy(COST_TERMS, LeastLoaded, reads_index=False),
    "consistent-hash": Policy(COST_TERMS, ConsistentHash, reads_index=False),
    "power-of-two": Policy(COST_TERMS, PowerOfTwo, reads_index=False),
    "round-robin": Policy(COST_TERMS, RoundRobin, reads_index=False),
    "random": Policy(COST_TERMS, AnyOne, reads_index=False),
}


@dataclass(slots=True)
class Pick:
    """What a profile decided.

    Attributes:
        lead_tokens: By how much the winner's cost is lower than the next one's; negative where another rule than cost
            decided against a cheaper one.
        price: What a recomputed token cost.
    """

    winner: Scored
    scored: list[Scored]
    reason: str
    price: float
    lead_tokens: float


class Profile:
    """One policy at work: scores candidates and picks one. Deciding has no side effects; `took` tells the picker."""

    def __init__(self, config: PlacementConfig) -> None:
        self.config = config
        policy = POLICY_TABLE[config.policy]
        self._scorers: list[tuple[str, Scorer]] = [(name, SCORERS[name]) for name in policy.scorers]
        self._picker = policy.picker()

    def decide(self, candidates: Sequence[Candidate], choice: Choice) -> Pick:
        """Choose among at least one candidates.

        The costs are worked out under every policy, so that a Decision can say what another one would have done.
        """
        weights = self.config.weights
        market = Market(price_of(candidates, weights), weights)
        scored = []
        for candidate in candidates:
            terms = {name: scorer(candidate, market) for name, scorer in self._scorers}
            scored.append(Scored(candidate, terms, sum(terms.values())))
        if len(scored) == 1:
            return Pick(scored[0], scored, "only", market.price, 0.0)
        winner, reason = self._picker.pick(scored, choice)
        next_cost = min(item.cost for item in scored if item is not winner)
        return Pick(winner, scored, reason, market.price, next_cost - winner.cost)

    def took(self, pick: Pick) -> None:
        """The decision was carried out."""
        self._picker.took(pick.winner)
