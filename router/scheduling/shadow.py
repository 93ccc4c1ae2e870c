"""Real requests scored under other weights as well: where those would have chosen otherwise, and what they would have
matched. Nothing else is done, so a shadow sees the caches that the real weights made: it tells of the next choice, not
of what the fleet would hold after an hour of its own choices. For that, record a trace and simulate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from router.config_placement import PlacementConfig
from router.scheduling.candidate import Candidate
from router.scheduling.pickers import Choice
from router.scheduling.policies import Profile

MAX_DIFFERENCES = 100


@dataclass(slots=True)
class ShadowTally:
    """What came of it up to now.

    Attributes:
        decisions: Requests that were scored twice.
        differed: Of these, where the shadow's choice was another, and cheaper by its own weights by more than a tie.
        prompt_tokens: Of all of them.
        matched_tokens: Cached tokens where they went.
        shadow_matched_tokens: Cached tokens where the shadow would have sent them.
        differences: The last ones, oldest first.
    """

    decisions: int = 0
    differed: int = 0
    prompt_tokens: int = 0
    matched_tokens: int = 0
    shadow_matched_tokens: int = 0
    differences: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_DIFFERENCES))

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, the last difference first."""
        return {
            "decisions": self.decisions,
            "differed": self.differed,
            "prompt_tokens": self.prompt_tokens,
            "matched_tokens": self.matched_tokens,
            "shadow_matched_tokens": self.shadow_matched_tokens,
            "differences": list(reversed(self.differences)),
        }


@dataclass(slots=True, eq=False)
class Scored:
    """What the shadow makes of one request, until the real choice is known."""

    winner: Candidate
    costs: dict[str, float]


class Shadow:
    """Scores requests by `placement.shadow`.

    Args:
        config: With a `shadow` in it.
        rng: A source of chance of its own, so that real choices are what they would be without it.
        counted: Told of each request: whether the choice would have been another, tokens matched, and those that the
            shadow would have matched.
    """

    def __init__(
        self, config: PlacementConfig, rng: Random, counted: Callable[[bool, int, int], None] | None = None
    ) -> None:
        shadow = config.shadow
        if shadow is None:
            raise ValueError("there is no shadow in this configuration")
        self._sample_share = shadow.sample_share
        self._tie_tokens = config.tie_tokens
        self._rng = rng
        self._profile = Profile(config.model_copy(update={"policy": "cost", "weights": shadow.weights}))
        self._counted = counted
        self.tally = ShadowTally()

    def score(self, candidates: Sequence[Candidate], choice: Choice) -> Scored | None:
        """Choose as the shadow would; None where this request is not of the sample.

        To be called before the real choice: candidates' costs are written, and written again by that.
        """
        if self._sample_share < 1 and self._rng.random() >= self._sample_share:
            return None
        own = Choice(choice.owner_key, choice.ring, choice.tie_tokens, self._rng)
        winner = self._profile.decide(candidates, own).winner
        return Scored(winner, {item.unit_id: item.cost for item in candidates})

    def compare(self, scored: Scored, real: Candidate, request_id: str) -> None:
        """The real choice is known: count."""
        tally, shadow = self.tally, scored.winner
        tally.decisions += 1
        tally.prompt_tokens += real.prompt_tokens
        tally.matched_tokens += real.matched_tokens
        extra_tokens = scored.costs[real.unit_id] - scored.costs[shadow.unit_id]
        # Within a tie chance decided: the shadow would as well have sent it there.
        differs = shadow is not real and extra_tokens > self._tie_tokens
        matched_tokens = shadow.matched_tokens if differs else real.matched_tokens
        tally.shadow_matched_tokens += matched_tokens
        if self._counted is not None:
            self._counted(differs, real.matched_tokens, matched_tokens)
        if not differs:
            return
        tally.differed += 1
        tally.differences.append(
            {
                "request_id": request_id,
                "winner": real.unit_id,
                "matched_tokens": real.matched_tokens,
                "shadow_winner": shadow.unit_id,
                "shadow_matched_tokens": shadow.matched_tokens,
                "cheaper_by_tokens": round(extra_tokens, 1),
                "prompt_tokens": real.prompt_tokens,
            }
        )
