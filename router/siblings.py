"""Keeps a worker's fleet at what the router's other workers have in flight, and tells them its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.fleet.fleet import Fleet
from router.shared_load import SharedLoad

EVERY_S = 0.01


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
        self._known: dict[int, tuple[int, float]] = {}

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            self.exchange()
            await asyncio.sleep(EVERY_S)

    def exchange(self) -> None:
        """Tell the others and hear from them, once."""
        now_s, units = self._clock(), self._fleet.units.values()
        self._load.publish(
            (unit.unit_id, unit.in_flight.requests, unit.in_flight.backlog_tokens(now_s))
            for unit in units
            if unit.in_flight.requests
        )
        heard = self._load.others()
        if heard is None and self._fleet.version == self._seen_version:
            return
        self._seen_version = self._fleet.version
        if heard is not None:
            self._known = heard
        for unit in units:
            unit.sibling_requests, unit.sibling_tokens = self._known.get(self._load.key(unit.unit_id), (0, 0.0))
