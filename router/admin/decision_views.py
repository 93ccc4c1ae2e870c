"""How a Decision looks to an operator: with every figure, and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from router.errors import MalformedRequestError
from router.fleet.fleet import Fleet
from router.scheduling.decision import Decision
from router.scheduling.why import outcome_sentence, sentence


def decision_view(decision: Decision, fleet: Fleet) -> dict[str, Any]:
    """Return a decision for JSON; `matched_blocks` by tier only of units that are still there."""
    view = decision.to_dict()
    for candidate in view["candidates"]:
        unit = fleet.units.get(candidate["unit"])
        if unit is not None and unit.scheme is not None:
            size = unit.scheme.block_size
            candidate["block_size"] = size
            candidate["matched_blocks"] = {tier: candidate[f"{tier}_tokens"] // size for tier in ("gpu", "cpu", "disk")}
    outcome = view["outcome"]
    if outcome is not None:
        cached = outcome["cached_tokens"]
        outcome["difference_tokens"] = None if cached is None else cached - view["matched_tokens"]
    view["why"] = sentence(view)
    view["what_came"] = outcome_sentence(view)
    return view


def _slowness(view: dict[str, Any]) -> float:
    outcome = view["outcome"]
    if outcome is None:
        return -1.0
    return float(outcome["total_s"] if outcome["ttft_s"] is None else outcome["ttft_s"])


def _surprise(view: dict[str, Any]) -> float:
    outcome = view["outcome"]
    if outcome is None or outcome["difference_tokens"] is None:
        return -1.0
    return float(abs(outcome["difference_tokens"]))


ORDERS: dict[str, Callable[[dict[str, Any]], float]] = {
    "newest": lambda view: float(view["at"]),
    "slowest": _slowness,
    "surprising": _surprise,
}
"""What each order of a list of decisions puts first: most of this."""


def order_of(name: str) -> Callable[[dict[str, Any]], float]:
    """Return the order of this name; raises MalformedRequestError."""
    if name not in ORDERS:
        raise MalformedRequestError(f"`order` must be one of {', '.join(ORDERS)}", param="order")
    return ORDERS[name]


def in_order(views: Iterable[dict[str, Any]], name: str, limit: int) -> list[dict[str, Any]]:
    """Return up to `limit` views, in this order; those that the order says nothing of are left out."""
    worth = order_of(name)
    known = [view for view in views if worth(view) >= 0]
    return sorted(known, key=worth, reverse=True)[: max(0, limit)]
