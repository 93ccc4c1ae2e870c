"""What dashboards draw over time, as a few plain numbers that add up over workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.telemetry.instruments import Instruments
from router.telemetry.reuse_ledger import ReuseLedger

GAUGES = ("queue", "in_flight")
STAGES = ("available", "captured", "delivered", "unobserved")
_FAILED = ("5xx", "none", "other")


def totals_of(instruments: Instruments, ledger: ReuseLedger) -> dict[str, Any]:
    """Return what was counted since the start, and what waits and runs now.

    Returns:
        `requests`, `failed` (answered with 5xx or not at all), `retries`, `aborted`; `prompt_tokens` and the stages of
        the reuse ledger, in tokens; `lost`: tokens by the reason why no cache gave them; `ttft`: requests by bucket of
        `warmroute_ttft_seconds`; `queue` and `in_flight`: requests.
    """
    values = instruments.values
    requests = values("warmroute_requests_total")
    stages = values("warmroute_reuse_tokens_total")
    return {
        "requests": sum(requests.values()),
        "failed": sum(count for labels, count in requests.items() if labels[-1] in _FAILED),
        "retries": sum(values("warmroute_retries_total").values()),
        "aborted": sum(values("warmroute_client_aborts_total").values()),
        "prompt_tokens": sum(values("warmroute_prompt_tokens_total").values()),
        **{stage: stages.get((stage,), 0.0) for stage in STAGES},
        "lost": ledger.lost_tokens(),
        "ttft": instruments.counts("warmroute_ttft_seconds"),
        "queue": sum(values("warmroute_queue_requests").values()),
        "in_flight": sum(values("warmroute_in_flight_requests").values()),
    }


def sum_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the totals of two processes together."""
    return {key: _sum(value, other.get(key)) for key, value in one.items()}


def counted(totals: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process that ended leaves: nothing waits or runs there any more."""
    return {key: 0.0 if key in GAUGES else value for key, value in totals.items()}


def _sum(one: Any, other: Any) -> Any:
    if other is None:
        return one
    if isinstance(one, list):
        return [mine + theirs for mine, theirs in zip(one, other, strict=True)]
    if isinstance(one, dict):
        return {key: _sum(one.get(key, 0.0), other.get(key, 0.0)) for key in [*one, *(set(other) - set(one))]}
    return one + other
