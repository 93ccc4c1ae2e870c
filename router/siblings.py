"""Keeps a worker's fleet at what the router's other workers have in flight, and tells them its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from router.fleet.fleet import Fleet
from router.fleet.replica import Unit
from router.shared_load import Others, Row, SharedLoad

EVERY_S = 0.01
NOBODY = Others()


class Siblings:
    """Exchanges figures with the other workers.

    Args:
        clock: The fleet's clock, in seconds.
    """

    def __init__(self, fleet: Fleet, load: SharedLoad, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._load = load
        self._clock = clock
        self._seen_version = -1
        self._known: dict[int, Others] = {}

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            self.exchange()
            await asyncio.sleep(EVERY_S)

    def exchange(self) -> None:
        """Tell the others and hear from them, once."""
        now_s, units = self._clock(), self._fleet.units.values()
        self._load.publish(_row(unit, now_s) for unit in units if unit.in_flight.requests)
        heard = self._load.others()
        if heard is None and self._fleet.version == self._seen_version:
            return
        self._seen_version = self._fleet.version
        before, self._known = self._known, self._known if heard is None else heard
        for unit in units:
            key, in_flight = self._load.key(unit.unit_id), unit.in_flight
            known, former = self._known.get(key, NOBODY), before.get(key)
            unit.sibling_requests, unit.sibling_tokens = known.requests, known.tokens
            in_flight.others_wait_since(sibling_head_s=known.head_s)
            if former is not None and known.computed_tokens > former.computed_tokens:
                in_flight.computed_for_others(known.computed_tokens - former.computed_tokens, now_s)


def _row(unit: Unit, now_s: float) -> Row:
    in_flight = unit.in_flight
    age_s = in_flight.head_age_s(now_s)
    head_s = math.inf if age_s is None else now_s - age_s
    return unit.unit_id, in_flight.requests, in_flight.backlog_tokens(now_s), head_s, float(in_flight.computed_tokens)
