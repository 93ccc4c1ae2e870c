"""Has a client that sent FIN left, or has it only finished sending?

Every client that was measured (`make bench-leaving`: openai, httpx, aiohttp, requests, curl, wget, Node, Chromium)
sends FIN when its request is cancelled, and no more.

The two look alike: closing a socket and shutting down its sending side both send FIN, and a client that waits for an
answer gets no other chance to say that it is gone. What differs is the answer to data: a closed socket resets. Before
the answer's head there is something harmless to send: RFC 9110, 15.2: "A client MUST be able to parse one or more 1xx
responses received prior to a final response, even if the client does not expect one." So the client gets a
`100 Continue`; if it is gone, its kernel resets the connection. After the head, the answer's own bytes do that. Between
the head and the first of those bytes (an engine answers a stream with its head at once, and computes the prompt then)
nothing may be sent; but nobody has finished sending only then: such a client has left.

asyncio stops reading at the FIN, so nobody is told of the reset: the socket is looked at.
"""

from __future__ import annotations

import asyncio
import select
from typing import Protocol

WAIT_S = 0.04
"""Answers that are there by then need no probe: `printf ... | nc -N` sees nothing of it."""
LOOK_S = 0.02


class Answerable(Protocol):
    """The exchange that runs when the FIN comes."""

    started: bool
    """Its head was sent."""
    wrote: bool
    """Bytes of its body were."""

    @property
    def takes_chunked(self) -> bool:
        """HTTP/1.1: an older client knows no 1xx."""


class HalfCloseProbe:
    """Watches one connection from its FIN on; aborts it when the client turns out to be gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, exchange: Answerable) -> None:
        self._loop = loop
        self._transport = transport
        self._exchange: Answerable | None = exchange
        self._awaits_body = exchange.started and not exchange.wrote
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), 0)
        self._timer = loop.call_later(WAIT_S, self._probe)

    def exchange_ended(self) -> None:
        """The answer that ran at the FIN is complete: a probe would land in the next one."""
        self._exchange = None

    def cancel(self) -> None:
        """The connection is closed."""
        self._timer.cancel()

    def _probe(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None and self._awaits_body and not exchange.wrote:
            self._transport.abort()
            return
        if exchange is not None and not exchange.started and exchange.takes_chunked:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        # With no events asked for, POLLERR and POLLHUP are still told: the connection was reset.
        if self._poll.poll(0):
            self._transport.abort()
            return
        self._timer = self._loop.call_later(LOOK_S, self._look)
