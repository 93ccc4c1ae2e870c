"""What the fleet's other routers have in flight, as they last told it.

Each tells all that it has at the units of one lane at once, and again at least each second while that is anything. So
what was not told again for `GONE_S` is of a router that is gone, or that can't be heard: it counts no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from router.fleet.fleet import Fleet

GONE_S = 3.0
MAX_ROUTERS = 1_000
MAX_ROWS = 200_000
"""Figures kept, of all routers together."""

Row = tuple[str, int, float]
"""Unit, requests, uncached prompt tokens."""


@dataclass(slots=True)
class _Told:
    """What a router told of one lane's units."""

    at_s: float
    rows: dict[str, tuple[int, float]] = field(default_factory=dict)


class PeerLoads:
    """Keeps units at the sum of what other routers tell of them.

    Args:
        fleet: Its units' `peer_requests` and `peer_tokens` are written here, and nowhere else.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._told: dict[tuple[str, int], _Told] = {}
        self._heard_s: dict[str, float] = {}
        self._totals: dict[str, tuple[int, float]] = {}
        self._changed: set[str] = set()
        self._rows = 0
        self._fleet_version = -1

    @property
    def routers(self) -> int:
        """Other routers that were heard lately."""
        return len(self._heard_s)

    def hear(self, router: str, lane: int, rows: Iterable[Row], now_s: float) -> None:
        """A router told all that it has at a lane's units."""
        if router not in self._heard_s and len(self._heard_s) >= MAX_ROUTERS:
            return
        self._heard_s[router] = now_s
        self._forget((router, lane))
        told = _Told(now_s)
        for unit_id, requests, tokens in rows:
            if self._rows >= MAX_ROWS:
                break
            if requests and unit_id not in told.rows:
                told.rows[unit_id] = (requests, tokens)
                self._rows += 1
                self._add(unit_id, requests, tokens)
        if told.rows:
            self._told[router, lane] = told
        self._show()

    def settle(self, now_s: float) -> None:
        """Forget who was not heard for too long, and tell units that are new."""
        for router in [router for router, heard_s in self._heard_s.items() if now_s - heard_s >= GONE_S]:
            del self._heard_s[router]
        for key in [key for key, told in self._told.items() if now_s - told.at_s >= GONE_S]:
            self._forget(key)
        if self._fleet_version != self._fleet.version:
            self._fleet_version = self._fleet.version
            self._changed.update(self._totals)
        self._show()

    def _forget(self, key: tuple[str, int]) -> None:
        told = self._told.pop(key, None)
        if told is not None:
            self._rows -= len(told.rows)
            for unit_id, (requests, tokens) in told.rows.items():
                self._add(unit_id, -requests, -tokens)

    def _add(self, unit_id: str, requests: int, tokens: float) -> None:
        before = self._totals.get(unit_id, (0, 0.0))
        self._changed.add(unit_id)
        if before[0] + requests:
            # Sums of floats drift, and never below nothing.
            self._totals[unit_id] = (before[0] + requests, max(0.0, before[1] + tokens))
        else:
            self._totals.pop(unit_id, None)

    def _show(self) -> None:
        for unit_id in self._changed:
            unit = self._fleet.unit(unit_id)
            if unit is not None:
                unit.peer_requests, unit.peer_tokens = self._totals.get(unit_id, (0, 0.0))
        self._changed.clear()
