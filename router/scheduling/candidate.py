"""A unit as a rule sees it: a few figures, all in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Candidate:
    """One unit that might take the prompt.

    Attributes:
        unit_id: The unit's name.
        replica_id: Its replica's name.
        prompt_tokens: Length of the prompt, or an estimate where it was not understood.
        matched_tokens: Leading tokens that the unit holds and the engine would read: whole blocks, at most prompt - 1.
        cpu_tokens: How many of the matched have to be loaded from the CPU tier.
        disk_tokens: How many of the matched have to be loaded from disk.
        expected_tokens: Leading tokens it will hold once what is in flight there is computed; at least
            `matched_tokens`.
        trust_share: How much of a match counts: 1 under EXACT and MAPPED trust.
        backlog_tokens: Uncached prompt tokens placed there and not computed yet.
        prefill_tokens_per_s: How fast it computes them.
        running: Requests placed there that have not ended.
        trust: The unit's trust, for the Decision.
        terms: Its cost by scorer, in prefill tokens; filled in when it is scored.
        cost: Their sum.
        kv_usage_share: Share of its KV cache that running requests hold, as the engine said; 0 where it did not, or
            where nobody asks.
        held_tokens: Tokens of its cache that requests hold; 0 where nobody asks.
    """

    unit_id: str
    replica_id: str
    prompt_tokens: int
    matched_tokens: int = 0
    cpu_tokens: int = 0
    disk_tokens: int = 0
    expected_tokens: int = 0
    trust_share: float = 1.0
    backlog_tokens: float = 0.0
    prefill_tokens_per_s: float = 8_000.0
    running: int = 0
    trust: str = "exact"
    terms: tuple[float, ...] = ()
    cost: float = 0.0
    kv_usage_share: float = 0.0
    held_tokens: float = 0.0

    def uncached_tokens(self, cpu_share: float = 1.0, disk_share: float = 1.0) -> float:
        """Tokens that it would have to compute, with slower tiers and lower trust counted as part-cached.

        Args:
            cpu_share: Share of a CPU-tier token that is saved.
            disk_share: Share of a disk-tier token that is saved.
        """
        lost = self.cpu_tokens * (1 - cpu_share) + self.disk_tokens * (1 - disk_share)
        return self.prompt_tokens - self.trust_share * (self.expected_tokens - lost)

    def to_dict(self, term_names: Sequence[str]) -> dict[str, Any]:
        """Return it for JSON; all figures in tokens.

        Args:
            term_names: What its terms are called.
        """
        return {
            "unit": self.unit_id,
            "replica": self.replica_id,
            "matched_tokens": self.matched_tokens,
            "gpu_tokens": self.matched_tokens - self.cpu_tokens - self.disk_tokens,
            "cpu_tokens": self.cpu_tokens,
            "disk_tokens": self.disk_tokens,
            "expected_tokens": self.expected_tokens,
            "uncached_tokens": self.prompt_tokens - self.expected_tokens,
            "backlog_tokens": round(self.backlog_tokens, 1),
            "running": self.running,
            "held_tokens": round(self.held_tokens),
            "trust": self.trust,
            "terms": {name: round(value, 1) for name, value in zip(term_names, self.terms, strict=False)},
            "cost": round(self.cost, 1),
        }
