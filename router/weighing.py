"""The native way to weigh candidates (`router/native/weighing.c`), where it was built.

Its twin is what decides otherwise: `router.survey` and `router.scheduling`. Tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from router.fleet.facts import EngineLoad
from router.fleet.ledger import Reservation, UnitLoad
from router.fleet.replica import Replica, Unit
from router.native import core

Weighed = tuple[Any, str | None, float, bytes, int]
"""The winner's place and lead, or a list of such for chance to choose from (then the reason is None); the reason; the
price; the figures (`router.scheduling.candidates.Packed`); the longest match in blocks."""


def _never(replicas: Sequence[Replica]) -> bool:
    return False


def _nothing(*_: Any) -> Weighed | None:
    return None


are_untroubled: Callable[[list[Replica]], bool] = _never
"""Whether all of them can only be READY; False, too, where nothing can be weighed natively."""
weigh: Callable[..., Weighed | None] = _nothing
"""See the C file for what it takes; None where something is not as usual."""

_built = core("weighing")
if _built is not None and _built.bind(Unit, UnitLoad, Reservation, EngineLoad, Replica):
    are_untroubled, weigh = _built.are_untroubled, _built.weigh
