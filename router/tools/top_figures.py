"""Figures of the overview as a terminal shows them. Unknown is "-", never zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router.telemetry.table import TTFT_SECONDS

UNKNOWN = "-"


def count(value: float | None) -> str:
    """A number, short: 12, 950, 12.3k, 4.0M."""
    if value is None:
        return UNKNOWN
    for least, unit, scale in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3)):
        if abs(value) >= least:
            return f"{value / scale:.1f}{unit}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def percent(share: float | None) -> str:
    """A share as whole per cent."""
    return UNKNOWN if share is None else f"{share:.0%}"


def seconds(value: float | None) -> str:
    """A duration: 12ms, 1.53s, 14.0m."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1e3:.0f}ms"
    if value < 90:
        return f"{value:.2f}s"
    return f"{value / 60:.1f}m" if value < 5_400 else f"{value / 3_600:.1f}h"


def quantile(counts: Sequence[float], share: float) -> float | None:
    """Return the time to first token under which a share of requests lies, in seconds, from `ttft`'s buckets."""
    total, below = sum(counts), 0.0
    if not total:
        return None
    for place, found in enumerate(counts):
        if found and below + found >= share * total:
            low = TTFT_SECONDS[place - 1] if place else 0.0
            high = TTFT_SECONDS[min(place, len(TTFT_SECONDS) - 1)]
            return low + (high - low) * (share * total - below) / found
        below += found
    return TTFT_SECONDS[-1]


def hit_share(row: Mapping[str, Any]) -> float | None:
    """Return a replica's hit rate of its last minute."""
    window = row["window"]
    return window["cached_tokens"] / window["prompt_tokens"] if window["prompt_tokens"] else None


def ttft_s(row: Mapping[str, Any]) -> float | None:
    """Return a replica's median time to first token of its last minute."""
    return quantile(row["window"]["ttft"], 0.5)


def rates(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what happened between two overviews; where they are the same one, since the router's start."""
    before, after = one["totals"], other["totals"]
    over_s: float = other["at"] - one["at"]
    alone = over_s <= 0

    def grown(key: str) -> float:
        value: float = after[key] if alone else max(0, after[key] - before[key])
        return value

    ttft = [now if alone else max(0, now - then) for then, now in zip(before["ttft"], after["ttft"], strict=True)]
    prompt, requests = grown("prompt_tokens"), grown("requests")
    return {
        "requests_per_s": None if alone else requests / over_s,
        "hit": grown("delivered") / prompt if prompt else None,
        "available": grown("available") / prompt if prompt else None,
        "failed": grown("failed") / requests if requests else None,
        "p50": quantile(ttft, 0.5),
        "p90": quantile(ttft, 0.9),
    }
