"""Which of the last decisions deserve a look: the slowest, and those that came out otherwise than predicted."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

from router.scheduling.decision import Decision

NOTABLE = 12
RETRY_TOKENS = 1_000
"""What a retry weighs among surprises."""


def notable(decisions: Sequence[Decision]) -> dict[str, list[dict[str, Any]]]:
    """Return the newest decisions, the slowest and the most surprising ones for JSON, in brief.

    Args:
        decisions: Newest first.
    """
    slowest = nlargest(NOTABLE, decisions, key=_ttft_s)
    surprising = nlargest(NOTABLE, decisions, key=_surprise_tokens)
    return ranked([brief(decision) for decision in (*decisions[:NOTABLE], *slowest, *surprising)])


def ranked(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Put brief decisions into order, those of several workers together too."""
    rows = list({(row["request_id"], row["at"]): row for row in rows}.values())
    slow = [row for row in rows if row["ttft_s"] is not None]
    odd = [row for row in rows if row["surprise_tokens"] > 0]
    return {
        "latest": sorted(rows, key=lambda row: -row["at"])[:NOTABLE],
        "slowest": sorted(slow, key=lambda row: -row["ttft_s"])[:NOTABLE],
        "surprising": sorted(odd, key=lambda row: -row["surprise_tokens"])[:NOTABLE],
    }


def brief(decision: Decision) -> dict[str, Any]:
    """Return what a line of a table shows of a decision."""
    outcome, available = decision.outcome, decision.available_tokens
    delivered = outcome.cached_tokens if outcome is not None else None
    difference = 0 if delivered is None else delivered - decision.matched_tokens
    passed_over = max(0, available - decision.matched_tokens)
    return {
        "request_id": decision.request_id,
        "at": round(decision.at_unix_s, 3),
        "model": decision.model,
        "winner": decision.winner,
        "reason": decision.reason,
        "prompt_tokens": decision.prompt_tokens,
        "matched_tokens": decision.matched_tokens,
        "available_tokens": available,
        "delivered_tokens": delivered,
        "queued_s": round(decision.queued_s, 4),
        "ttft_s": None if outcome is None or outcome.ttft_s is None else round(outcome.ttft_s, 4),
        "status": None if outcome is None else outcome.status,
        "error": None if outcome is None else outcome.error,
        "ended": outcome is not None,
        "retries": len(decision.retries),
        "surprise": _surprise(difference, passed_over, len(decision.retries), decision.prompt_reason),
        "surprise_tokens": _surprise_tokens(decision),
    }


def _ttft_s(decision: Decision) -> float:
    outcome = decision.outcome
    return -1.0 if outcome is None or outcome.ttft_s is None else outcome.ttft_s


def _surprise_tokens(decision: Decision) -> int:
    """How many tokens came out, or were placed, otherwise than one would think; a retry weighs as some."""
    outcome, matched = decision.outcome, decision.matched_tokens
    difference = 0 if outcome is None or outcome.cached_tokens is None else abs(outcome.cached_tokens - matched)
    return difference + max(0, decision.available_tokens - matched) + RETRY_TOKENS * len(decision.retries)


def _surprise(difference: int, passed_over: int, retries: int, prompt_reason: str | None) -> str:
    said = []
    if retries:
        said.append(f"sent again {retries}x")
    if difference:
        said.append(f"{abs(difference):,} tokens {'more' if difference > 0 else 'fewer'} cached than predicted")
    if passed_over:
        said.append(f"{passed_over:,} more tokens matched elsewhere")
    if prompt_reason is not None:
        said.append(f"prompt not understood ({prompt_reason})")
    return "; ".join(said)
