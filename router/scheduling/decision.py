"""A Decision: everything that led to a choice, and afterwards what came of it.

Every request makes one and few are ever looked at, so it keeps what the choice was made from as it is, and is put in
order and into words when somebody asks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from router.scheduling.candidate import Candidate
from router.scheduling.candidates import Candidates


class Outcome:
    """What came of a placed request.

    Attributes:
        status: The engine's HTTP status; None when it never answered.
        error: The router's error code, or None.
        prompt_tokens: As the engine counted; None when it did not say.
        cached_tokens: Delivered from the engine's prefix cache; None when it did not say.
        ttft_s: Seconds from the request's arrival to the first byte of the body.
        total_s: Seconds from arrival to the end.
        aborted: The client left.
    """

    __slots__ = (
        "aborted",
        "cached_tokens",
        "completion_tokens",
        "error",
        "prompt_tokens",
        "status",
        "total_s",
        "ttft_s",
    )

    def __init__(
        self,
        status: int | None,
        error: str | None,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        completion_tokens: int | None,
        ttft_s: float | None,
        total_s: float,
        aborted: bool = False,
    ) -> None:
        self.status = status
        self.error = error
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.completion_tokens = completion_tokens
        self.ttft_s = ttft_s
        self.total_s = total_s
        self.aborted = aborted

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "status": self.status,
            "error": self.error,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "ttft_s": self.ttft_s,
            "total_s": self.total_s,
            "aborted": self.aborted,
        }


@dataclass(slots=True, eq=False)
class Decision:
    """Why a request went where it went.

    Attributes:
        at_unix_s: Wall clock, for people.
        prompt_tokens: Length of the prompt, or an estimate where `prompt_reason` is set.
        price: What a token to recompute cost against a waiting one.
        candidates: All that were scored, with their costs, in no order.
        removed: Replicas that no rule could choose, with the filter that removed each.
        winner: The unit chosen.
        lead_tokens: How much cheaper it is than the next candidate.
        matched_tokens: What the winner is predicted to have cached.
        expected_tokens: Its match with what is in flight there counted.
        reason: How it won: cost, owner, least-loaded, random, prefix, turn, only.
        trust: The winner's.
        prompt_reason: Why the prompt was placed by load alone, if it was.
        owner: The unit that owns the prompt's first blocks.
        retries: Replicas that were tried before.
        queued_s: Seconds that it waited for a replica with room.
        outcome: Set when the request ended.
        term_names: What the candidates' costs are made of, in order.
        unavailable_tokens: The longest match of a unit that could not take the request.
        trace: Hashes of the prompt for `warmroute doctor --traffic`; None unless the router keeps them.
    """

    request_id: str
    at_unix_s: float
    model: str | None
    policy: str
    prompt_tokens: int
    price: float
    candidates: Sequence[Candidate]
    removed: dict[str, str]
    winner: str
    lead_tokens: float
    matched_tokens: int
    expected_tokens: int
    reason: str
    trust: str
    prompt_reason: str | None = None
    owner: str | None = None
    retries: list[str] = field(default_factory=list)
    queued_s: float = 0.0
    outcome: Outcome | None = None
    trace: dict[str, Any] | None = field(default=None, repr=False)
    term_names: Sequence[str] = ()
    unavailable_tokens: int = 0

    @property
    def available_tokens(self) -> int:
        """The longest match of any candidate."""
        candidates = self.candidates
        if isinstance(candidates, Candidates):
            return candidates.longest_tokens
        return max([item.matched_tokens for item in candidates], default=0)

    def to_dict(self, max_candidates: int | None = None) -> dict[str, Any]:
        """Return it for JSON.

        Args:
            max_candidates: Keep the cheapest and always the winner.
        """
        ranked = sorted(self.candidates, key=attrgetter("cost"))
        kept = ranked if max_candidates is None else ranked[:max_candidates]
        if not any(item.unit_id == self.winner for item in kept):
            kept = kept[:-1] + [item for item in self.candidates if item.unit_id == self.winner]
        return {
            "request_id": self.request_id,
            "at": round(self.at_unix_s, 3),
            "model": self.model,
            "policy": self.policy,
            "winner": self.winner,
            "reason": self.reason,
            "lead_tokens": round(self.lead_tokens, 1),
            "prompt_tokens": self.prompt_tokens,
            "matched_tokens": self.matched_tokens,
            "expected_tokens": self.expected_tokens,
            "available_tokens": self.available_tokens,
            "unavailable_tokens": self.unavailable_tokens,
            "price": round(self.price, 3),
            "trust": self.trust,
            "prompt_reason": self.prompt_reason,
            "owner": self.owner,
            "retries": self.retries,
            "queued_s": round(self.queued_s, 6),
            "removed": self.removed,
            "candidates": [item.to_dict(self.term_names) for item in kept],
            "candidates_left_out": len(self.candidates) - len(kept),
            "outcome": self.outcome.to_dict() if self.outcome else None,
        }

    def compact(self, max_bytes: int = 4_096, max_candidates: int = 8) -> str:
        """Return one line of ASCII JSON for a header: fewer candidates where it would be longer than `max_bytes`."""
        for count in range(max_candidates, 0, -1):
            data = self.to_dict(count)
            del data["outcome"]
            if len(data["removed"]) > max_candidates:
                data["removed"] = {"replicas": len(self.removed)}
            text = json.dumps(data, separators=(",", ":"))
            if len(text) <= max_bytes:
                return text
        return json.dumps({"winner": self.winner[:256], "reason": self.reason, "matched_tokens": self.matched_tokens})
