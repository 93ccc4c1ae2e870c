"""How each replica did of late, from the decisions that are kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from router.scheduling.decision import Decision
from router.telemetry.table import TTFT_SECONDS

WINDOW_S = 60.0
MAX_DECISIONS = 2_000
"""Looked at for each view: a busy router's window is shorter."""


def windows(
    decisions: Iterable[Decision], replica_of: Mapping[str, str], now_unix_s: float
) -> dict[str, dict[str, Any]]:
    """Return by replica what came of the requests placed there within `WINDOW_S`.

    Args:
        decisions: Newest first.
        replica_of: The replica of each unit; what was placed at others is left out.

    Returns:
        `requests` that ended, `failed`, `prompt_tokens` and `cached_tokens` where the engine told both, `ttft`:
        requests by bucket of `warmroute_ttft_seconds`. All add up over workers.
    """
    found: dict[str, dict[str, Any]] = {}
    for decision in decisions:
        if decision.at_unix_s < now_unix_s - WINDOW_S:
            break
        outcome = decision.outcome
        replica_id = replica_of.get(decision.winner)
        if outcome is None or replica_id is None:
            continue
        window = found.get(replica_id)
        if window is None:
            window = found[replica_id] = empty_window()
        window["requests"] += 1
        window["failed"] += outcome.status is None or outcome.status >= 500
        if outcome.prompt_tokens is not None and outcome.cached_tokens is not None:
            window["prompt_tokens"] += outcome.prompt_tokens
            window["cached_tokens"] += outcome.cached_tokens
        if outcome.ttft_s is not None:
            window["ttft"][bisect_left(TTFT_SECONDS, outcome.ttft_s)] += 1
    return found


def empty_window() -> dict[str, Any]:
    """Return the window of a replica that ended no request."""
    return {"requests": 0, "failed": 0, "prompt_tokens": 0, "cached_tokens": 0, "ttft": [0] * (len(TTFT_SECONDS) + 1)}
