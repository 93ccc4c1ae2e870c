"""Filters: each may take a replica out of the choice, and its name is the reason that a Decision gives.

A new filter is a function here and a line in `FILTERS`; the first that objects names the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a replica stands for one request.

    Attributes:
        state: `ready`, `warming`, `draining`, `ejected` or `down`.
        tried: It was tried for this request and failed.
        full: It has `limits.max_in_flight` requests.
    """

    state: str
    tried: bool
    full: bool = False


def tried(standing: Standing) -> bool:
    """Keep replicas that did not fail this request already."""
    return not standing.tried


def ready(standing: Standing) -> bool:
    """Keep replicas that may take a request."""
    return standing.state == "ready"


def full(standing: Standing) -> bool:
    """Keep replicas that have room."""
    return not standing.full


FILTERS: dict[str, Callable[[Standing], bool]] = {"tried": tried, "ready": ready, "full": full}


def objection(standing: Standing) -> str | None:
    """Return why a replica can't be chosen: a filter's name, or the state itself; None when it can."""
    for name, keeps in FILTERS.items():
        if not keeps(standing):
            return standing.state if name == "ready" else name
    return None
