"""How a client's connection is answered: what it writes now or at the turn's end, and whether it stays after that."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

from router.proxy.ahead import Ahead
from router.proxy.client_state import LINGER_DRAINING_S, LINGER_QUIET_S, LINGER_S, State
from router.proxy.deadlines import NEVER
from router.proxy.door import Door
from router.proxy.half_close import HalfCloseProbe
from router.proxy.http1_exchange import Http1Exchange
from router.proxy.incoming_body import IncomingBody
from router.proxy.turn import MANY

_HEAD, _BODY, _RUNNING, _LINGER, _GONE = State  # a member's look-up in its class costs as much as a call


class ClientWriting(ABC, asyncio.Protocol):
    """The part of a client's connection that answers. `ClientConnection` is the rest of it.

    Whoever does anything else with the transport than `send_soon` flushes before: what is held comes first.
    """

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything is received
        self._state = _HEAD
        self._body: IncomingBody | None = None
        self._exchange: Http1Exchange | None = None
        self._keep_alive = False
        self._ahead, self._ahead_dropped = Ahead(), False
        self._unsent = b""
        self._held_bytes = 0
        self._consuming = False
        self._reading_paused = False
        self._writing_paused = False
        self._half_closed: HalfCloseProbe | None = None
        self._linger_until_s = NEVER
        self.deadline_s = NEVER

    @abstractmethod
    def _take_up_ahead(self) -> None:
        """Go on with what came while a request was answered."""

    def send_soon(self, data: bytes) -> None:
        """Write now, or at the turn's end with what others write then."""
        if self._unsent:
            self.flush()
        turn = self._door.turn
        if turn.expecting >= MANY:
            self._unsent = data
            turn.hold(self)
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write what is held."""
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._transport.write(unsent)

    def keeps_alive(self) -> bool:
        """Whether this connection may serve another request after this one."""
        return (
            self._keep_alive
            and not self._door.draining
            and (self._half_closed is None or self._ahead.waiting_bytes > 0)
        )

    def may_hold(self) -> bool:
        """Whether the answer may be held for the turn's end: this connection stays, and nothing waits behind it."""
        return (
            self._keep_alive
            and self._half_closed is None
            and not self._ahead.waiting_bytes
            and not self._door.draining
            and not self._ahead_dropped
            and not self._writing_paused
        )

    def body_held(self, size_bytes: int) -> bool:
        """Count the request's body anew."""
        if self._body is None:
            self._body, self._held_bytes = IncomingBody.held(self._held_bytes, self._door.budget), 0
        return self._body.hold(size_bytes)

    def body_released(self) -> None:
        """Give back what the request's body holds of the budget."""
        body, self._body = self._body, None
        if body is not None:
            body.release()
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._door.budget.give(held_bytes)

    def exchange_ended(self, *, keep: bool) -> None:
        """The answer was written as a whole."""
        was_running = self._state is _RUNNING
        self._exchange = None
        if self._body is not None or self._held_bytes:
            self.body_released()
        if self._state is _GONE:
            return
        if self._half_closed is not None:
            self._half_closed.exchange_ended()
        if not keep or self._door.closing or self._ahead_dropped:
            if was_running and not keep and not self._ahead.waiting_bytes and not self._ahead_dropped:
                self._transport.close()
                self._await_close()
            else:
                self._linger()
            return
        self._state = _HEAD
        self.deadline_s = time.monotonic() + self._door.timeouts.keepalive_s
        if not self._consuming and (self._ahead.waiting_bytes or self._reading_paused or self._half_closed is not None):
            self._take_up_ahead()

    def exchange_aborted(self) -> None:
        """The answer was cut, and the connection is closing."""
        self._exchange = None
        self.body_released()
        if self._state is not _GONE:
            self._await_close()

    def _await_close(self) -> None:
        """The transport closes once all is written: bound how long a client that reads nothing can hold it open."""
        self._state = _LINGER
        self.deadline_s = self._linger_until_s = time.monotonic() + LINGER_S

    def _linger(self) -> None:
        now_s = time.monotonic()
        self._state = _LINGER
        self._ahead.clear()
        self._linger_until_s = now_s + (LINGER_DRAINING_S if self._door.closing else LINGER_S)
        self.deadline_s = min(self._linger_until_s, now_s + LINGER_QUIET_S)
        self._resume_reading()
        if self._half_closed is None and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
