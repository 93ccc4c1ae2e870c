"""What is written in one turn of the loop goes out together, while many requests run.

To write to a socket wakes whoever reads it, if it sleeps: with another core asleep that costs several times what the
bytes do. While a turn of the loop takes in one request after the other, each write would find its reader asleep again.
Held for the turn's end the first of them wakes it, and the others find it at work.

A request that is alone is not held, and nothing that is part of a stream.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

MANY = 8
"""With fewer requests at once nothing is held: there is nobody to go out with."""
TOGETHER = 32
"""So many are held at most: the first must not wait for long."""


class Holding(Protocol):
    """A connection that holds bytes."""

    def flush(self) -> None:
        """Write what is held, if anything still is."""


class Turn:
    """Has connections write at the end of a turn.

    Attributes:
        expecting: Requests that run and whose answer has not begun; `Forwarding` counts them. Streams that go on are
            not among them: a turn is long with many of those, and nothing may wait for them.
    """

    __slots__ = ("_holding", "_loop", "_will_flush", "expecting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._holding: list[Holding] = []
        self._will_flush = False
        self.expecting = 0

    def hold(self, connection: Holding) -> None:
        """Have a connection flush at the turn's end, or now if enough do. Asked with `MANY` requests and more."""
        holding = self._holding
        holding.append(connection)
        if len(holding) >= TOGETHER:
            self._flush()
        elif not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._ended)

    def _ended(self) -> None:
        self._will_flush = False
        self._flush()

    def _flush(self) -> None:
        holding, self._holding = self._holding, []
        left = iter(holding)
        try:
            for connection in left:
                connection.flush()
        finally:
            for connection in left:  # one of them failed: the others are not to wait for ever
                self.hold(connection)
