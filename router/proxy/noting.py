"""Requests that end in one turn of the loop are taken note of together, at its end, while many run.

Taking note of one request right after a thousand other things were done for it, its code and what it counts with have
left the processor's nearest caches: several one after the other take two thirds of the time. Whoever asks over a
connection finds all of them counted, since the loop takes in nothing before it has done what a turn left.
"""

from __future__ import annotations

import asyncio

from router.placement import Placement
from router.proxy.seams import Records
from router.proxy.turn import MANY, TOGETHER, Turn
from router.scheduling.decision import Outcome
from router.telemetry.recorder import RequestFacts


class Noting:
    """Tells the records of requests that ended, each once, in the order of their ends."""

    __slots__ = ("_ended", "_loop", "_records", "_turn")

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Turn, records: Records) -> None:
        self._loop = loop
        self._turn = turn
        self._records = records
        self._ended: list[tuple[Placement | None, Outcome, RequestFacts]] = []

    def ended(self, placement: Placement | None, outcome: Outcome, facts: RequestFacts) -> None:
        """A request ended: told now where few run, else at the turn's end. None of the three changes any more."""
        ended = self._ended
        if not ended:
            if self._turn.expecting < MANY:
                self._records.finished(placement, outcome, facts)
                return
            self._loop.call_soon(self.settle)
        ended.append((placement, outcome, facts))
        if len(ended) >= TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Tell what waits to be told."""
        ended, self._ended = self._ended, []
        finished = self._records.finished
        left = iter(ended)
        try:
            for placement, outcome, facts in left:
                finished(placement, outcome, facts)
        finally:
            for placement, outcome, facts in left:  # one of them failed: the others are told all the same
                self._ended.append((placement, outcome, facts))
            if self._ended:
                self._loop.call_soon(self.settle)
