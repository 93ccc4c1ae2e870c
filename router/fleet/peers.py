"""What the fleet's other routers have in flight, as they last told it.

Each tells all that it has at the units of one lane at once, and again at least each second while that is anything. So
what was not told again for `GONE_S` is of a router that is gone, or that can't be heard: it counts no more.

Tokens melt between two tellings, as they do in a router's own ledger: at the speed that is known of the unit, and of
the router alone whose prompt has waited there longest, since an engine computes first come, first served. Where that is
a prompt of our own, nothing of the others' melts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from router.fleet.fleet import Fleet
from router.fleet.ledger import MAX_MELTED_SHARE, NEVER
from router.fleet.replica import Unit
from router.kv.router_load import NO_HEAD, Row

EVERY_S = 0.05
"""Least pause between two tellings of a router about one lane."""
GONE_S = 3.0
STEP_TOKENS = 64
"""Tokens in flight are told in steps of this: they melt all the time."""
MAX_ROUTERS = 1_000
MAX_ROWS = 200_000
"""Figures kept, of all routers together."""

_NO_HEADS: dict[tuple[str, int], float] = {}


@dataclass(slots=True)
class _Told:
    """What a router told of one lane's units."""

    at_s: float
    rows: dict[str, Row] = field(default_factory=dict)


class PeerLoads:
    """Keeps units at the sum of what other routers tell of them.

    Args:
        fleet: Its units' `peer_requests`, `peer_tokens` and `in_flight.peer_head_s` are written here, and nowhere else.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._told: dict[tuple[str, int], _Told] = {}
        self._heard_s: dict[str, float] = {}
        self._totals: dict[str, tuple[int, float]] = {}
        self._heads: dict[str, dict[tuple[str, int], float]] = {}
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
        key = (router, lane)
        before = self._forget(key)
        told = _Told(now_s)
        for row in rows:
            if self._rows >= MAX_ROWS:
                break
            if row.requests and row.unit not in told.rows:
                told.rows[row.unit] = row
                self._rows += 1
                self._add(row.unit, row.requests, row.tokens)
                if row.head_age_s >= 0:
                    self._heads.setdefault(row.unit, {})[key] = now_s - row.head_age_s
                self._computed(row, before, now_s)
        if told.rows:
            self._told[key] = told
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

    def melt(self, now_s: float) -> None:
        """Take off what was computed of others' prompts since they were told of, as far as is known."""
        for unit_id, heads in self._heads.items():
            unit = self._fleet.unit(unit_id)
            if unit is None:
                continue
            oldest = min(heads, key=heads.__getitem__)
            own_age_s = unit.in_flight.head_age_s(now_s)
            total = self._totals[unit_id][1]
            if own_age_s is not None and now_s - own_age_s < heads[oldest]:
                unit.peer_tokens = total
                continue
            told = self._told[oldest]
            melted = (now_s - told.at_s) * unit.in_flight.prefill_tokens_per_s
            unit.peer_tokens = total - min(melted, MAX_MELTED_SHARE * told.rows[unit_id].tokens)

    def _forget(self, key: tuple[str, int]) -> dict[str, Row]:
        told = self._told.pop(key, None)
        if told is None:
            return {}
        self._rows -= len(told.rows)
        for unit_id, row in told.rows.items():
            self._add(unit_id, -row.requests, -row.tokens)
            heads = self._heads.get(unit_id)
            if heads is not None and heads.pop(key, None) is not None and not heads:
                del self._heads[unit_id]
        return told.rows

    def _computed(self, row: Row, before: Mapping[str, Row], now_s: float) -> None:
        """What was computed for a router since it last told of this unit."""
        former, unit = before.get(row.unit), self._fleet.unit(row.unit)
        if former is not None and unit is not None and row.computed_tokens > former.computed_tokens:
            unit.in_flight.computed_for_others(row.computed_tokens - former.computed_tokens, now_s)

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
                head_s = min(self._heads.get(unit_id, _NO_HEADS).values(), default=NEVER)
                unit.in_flight.others_wait_since(peer_head_s=head_s)
        self._changed.clear()


def row_of(unit: Unit, now_s: float) -> Row:
    """Return what is told of a unit."""
    in_flight = unit.in_flight
    tokens = STEP_TOKENS * round(in_flight.backlog_tokens(now_s) / STEP_TOKENS)
    head_age_s = in_flight.head_age_s(now_s)
    return Row(
        unit.unit_id,
        in_flight.requests,
        float(tokens),
        NO_HEAD if head_age_s is None else head_age_s,
        float(in_flight.computed_tokens),
    )
