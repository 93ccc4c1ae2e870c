"""The table of policies: which scorers, which picker. Operators choose one by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.config_placement import PlacementConfig, WeightsConfig
from router.scheduling.candidate import Candidate
from router.scheduling.candidates import Candidates
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
    Stateless,
)
from router.scheduling.scorers import SCORERS, Market, Scorer, pace_of, price_of


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


COST_TERMS = ("queue", "recompute", "running", "held")
POLICY_TABLE: dict[str, Policy] = {
    "cost": Policy(COST_TERMS, LowestCost, reads_index=True),
    "longest-prefix": Policy(COST_TERMS, LongestPrefix, reads_index=True),
    "least-loaded": Policy(COST_TERMS, LeastLoaded, reads_index=False),
    "consistent-hash": Policy(COST_TERMS, ConsistentHash, reads_index=False),
    "power-of-two": Policy(COST_TERMS, PowerOfTwo, reads_index=False),
    "round-robin": Policy(COST_TERMS, RoundRobin, reads_index=False),
    "random": Policy(COST_TERMS, AnyOne, reads_index=False),
}


@dataclass(slots=True, eq=False)
class Pick:
    """What a profile decided.

    Attributes:
        place: The winner's among the candidates.
        candidates: All, with their costs.
        price: What a recomputed token cost.
        lead_tokens: By how much the winner's cost is lower than the next one's; negative where another rule than cost
            decided against a cheaper one.
        matched_tokens, expected_tokens: The winner's.
    """

    place: int
    candidates: Candidates
    reason: str
    price: float
    lead_tokens: float
    matched_tokens: int
    expected_tokens: int

    @classmethod
    def of(cls, place: int, candidates: Candidates, reason: str, price: float) -> Pick:
        """Return the choice of a place among scored candidates."""
        lead_tokens = lead_of(candidates.costs, place) if len(candidates) > 1 else 0.0
        matched_tokens, expected_tokens = candidates.matched_tokens[place], candidates.expected_tokens[place]
        return cls(place, candidates, reason, price, lead_tokens, matched_tokens, expected_tokens)

    @property
    def winner(self) -> Candidate:
        """The one that was chosen."""
        return self.candidates[self.place]


@dataclass(frozen=True, slots=True)
class Scoring:
    """How candidates get their costs, under one configuration.

    Attributes:
        scorers: Each gives a term.
        weights: The operator's.
    """

    scorers: Sequence[Scorer]
    weights: WeightsConfig

    def __call__(self, candidates: Candidates) -> float:
        """Fill in candidates' terms and costs; return what a recomputed token cost."""
        market = Market(price_of(candidates, self.weights), self.weights, pace_of(candidates))
        candidates.score([scorer(candidates, market) for scorer in self.scorers])
        return market.price


class Profile:
    """One policy at work: scores candidates and picks one. Deciding has no side effects; `took` tells the picker.

    Attributes:
        terms: The names of a candidate's terms, in order.
        scoring: Gives candidates their costs.
        figures: The weights as `router.native.weighing` takes them, where it knows all of the rule; else None.
    """

    def __init__(self, config: PlacementConfig) -> None:
        self._picker = POLICY_TABLE[config.policy].picker()
        self.remembers = not isinstance(self._picker, Stateless)
        """Whether its picker wants to be told by `took`."""
        self.configure(config)

    def configure(self, config: PlacementConfig) -> None:
        """Score by other weights from now on; the policy stays the same, and what its picker remembers."""
        self.config = config
        self.terms = POLICY_TABLE[config.policy].scorers
        if config.weights.kv_pressure_tokens:
            self.terms = (*self.terms, "kv_pressure")
        weights = config.weights
        self.scoring = Scoring([SCORERS[name] for name in self.terms], weights)
        self.figures: tuple[float, ...] | None = None
        if config.policy == "cost" and self.terms == COST_TERMS:
            self.figures = (
                weights.running_tokens,
                weights.held_share,
                weights.price_base,
                weights.price_per_backlog_s,
                weights.price_max,
                weights.cpu_tier_share,
                weights.disk_tier_share,
            )

    def decide(self, items: Sequence[Candidate], choice: Choice) -> Pick:
        """Choose among at least one candidates, and fill in their costs.

        The costs are worked out under every policy, so that a Decision can say what another one would have done.
        """
        candidates = Candidates.of(items)
        price = self.scoring(candidates)
        if len(candidates) == 1:
            return Pick.of(0, candidates, "only", price)
        place, reason = self._picker.pick(candidates, choice)
        return Pick.of(place, candidates, reason, price)

    def took(self, pick: Pick) -> None:
        """The decision was carried out."""
        self._picker.took(pick.candidates.unit_ids[pick.place])


def lead_of(costs: Sequence[float], place: int) -> float:
    """Return by how much the cost at a place is lower than the lowest of the others, of which there is at least one."""
    others = list(costs)
    return -others.pop(place) + min(others)
