"""A client's connection: requests in, one at a time, and what is refused before it is a request."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from router.errors import DrainingError, OverloadedError, RequestTimeoutError, WarmrouteError
from router.proxy.ahead import AHEAD_BYTES, AHEAD_S
from router.proxy.client_state import DISCARD_BYTES, LINGER_DRAINING_S, LINGER_QUIET_S, State
from router.proxy.client_writing import ClientWriting
from router.proxy.deadlines import NEVER
from router.proxy.door import Door
from router.proxy.exchange import Request
from router.proxy.half_close import HalfCloseProbe
from router.proxy.http1_exchange import Http1Exchange
from router.proxy.incoming_body import BUDGET_SPENT, IncomingBody
from router.proxy.incoming_head import IncomingHead
from router.proxy.known_heads import KnownRequest, length_digits
from router.proxy.paths import is_admin, split_target
from router.proxy.request_head import RequestHead

_HEAD, _BODY, _RUNNING, _LINGER, _GONE = State  # a member's look-up in its class costs as much as a call


class ClientConnection(ClientWriting):
    """Serves one client, one request at a time; the states are those of `State`."""

    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self._client = ""
        self._incoming = IncomingHead()
        self._request: Request | None = None
        self._refusal: WarmrouteError | None = None
        self._known: KnownRequest | None = None
        self._arrived_s = 0.0

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports do not derive from asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._client = f"{peer[0]}:{peer[1]}" if peer else ""
        self._arrived_s = time.monotonic()
        self.deadline_s = self._arrived_s + self._door.timeouts.request_s
        self._door.deadlines.watch(self)
        if not self._door.enter(self):
            self._refuse(OverloadedError("too many connections", retry_after_s=1))
            self._transport.close()  # no lingering: it would hold a connection over the limit

    def data_received(self, data: bytes) -> None:
        """Bytes of this request or a later one."""
        if self._state is _HEAD and self._known is not None and self._take_whole(self._known, data):
            return
        state = self._state
        if state is _RUNNING or self._ahead.waiting_bytes:
            if not self._ahead_dropped:
                self._keep_ahead(data)
        elif state is _LINGER:
            self.deadline_s = min(self._linger_until_s, time.monotonic() + LINGER_QUIET_S)
        elif state is not _GONE:
            now_s = time.monotonic()
            if state is _BODY or not self._incoming.read_bytes:
                # A head has `request_s` from its first byte, so that a byte now and then does not hold it open; a body
                # from each of its parts.
                self.deadline_s = now_s + self._door.timeouts.request_s
                if state is _HEAD:
                    self._arrived_s = now_s
            self._consume(data)

    def eof_received(self) -> bool:
        """The client has finished sending. It may still read: a request that is complete is answered."""
        self.flush()
        if self._state is not _RUNNING or self._exchange is None:
            return False
        if self._door.aborts_half_closed or self._transport.get_extra_info("ssl_object") is not None:
            self._transport.abort()  # by TLS there is no half-close: whoever ends it has left
            return False
        self._half_closed = HalfCloseProbe(self._door.loop, self._transport, self._exchange)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._unsent = b""
        self._detach()
        self._ahead.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self.body_released()

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self._writing_paused = True
        if self._exchange is not None and self._exchange.listener is not None:
            self._exchange.listener.writing_paused()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writing_paused = False
        if self._exchange is not None and self._exchange.listener is not None:
            self._exchange.listener.writing_resumed()
        elif self._state is _HEAD:
            self._take_up_ahead()

    # -- deadlines and draining ---------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        """The client was too slow, idle for too long, or has lingered enough."""
        self.flush()
        self.deadline_s = NEVER
        if self._state is _BODY or (self._state is _HEAD and self._incoming.read_bytes):
            draining = self._door.closing and self._state is _HEAD
            late = "the request did not come in time"
            self._refuse(DrainingError("the router is going away") if draining else RequestTimeoutError(late))
        elif self._state is _RUNNING:
            self._ahead_dropped, self._keep_alive = True, False
            self._ahead.clear()
            self._resume_reading()
        else:
            self._transport.abort()

    def drain(self) -> None:
        """End now if nothing is being asked or answered, and soon if a request has only begun to come."""
        self.flush()
        if self._state is _HEAD and not self._incoming.read_bytes:
            self._linger()  # a request that crosses the end is not answered by a reset: its client sees a clean end
        elif self._state is _HEAD:
            self.deadline_s = min(self.deadline_s, time.monotonic() + LINGER_DRAINING_S)
        elif self._state is _LINGER:
            self.deadline_s = self._linger_until_s = min(self._linger_until_s, time.monotonic() + LINGER_DRAINING_S)

    def kill(self) -> None:
        """Close at once, whatever is running."""
        self._transport.abort()

    def _detach(self) -> None:
        self._state = _GONE
        self.deadline_s = NEVER
        self._door.deadlines.unwatch(self)
        self._door.leave(self)
        if self._half_closed is not None:
            self._half_closed.cancel()

    # -- bytes in -----------------------------------------------------------------------------------------------------

    def _keep_ahead(self, data: bytes, at: int = 0) -> None:
        self._ahead.add(data, at)
        if self._ahead.waiting_bytes > AHEAD_BYTES and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
            if self._state is _RUNNING:
                self.deadline_s = time.monotonic() + AHEAD_S

    def _consume(self, data: bytes, at: int = 0) -> None:
        """Take in all bytes from a place on. A loop and no recursion: one segment may hold thousands of requests."""
        if self._unsent:
            self.flush()
        self._consuming = True
        end = len(data)
        try:
            while at < end:
                state = self._state
                if state is _HEAD:
                    if self._writing_paused:
                        # A client that asks and does not read would otherwise fill the memory with answers.
                        self._keep_ahead(data, at)
                        break
                    known = self._known
                    if known is not None and not self._incoming.read_bytes and known.fits(data, at, self._door.paths):
                        at = self._take_known(known, data)
                    else:
                        at = self._take_head(data, at)
                elif state is _BODY:
                    at = self._take_body(data, at)
                else:
                    if state is _RUNNING:
                        self._keep_ahead(data, at)
                    break
        except WarmrouteError as error:
            self._refuse(error)
        finally:
            self._consuming = False

    def _take_whole(self, known: KnownRequest, data: bytes) -> bool:
        """Take in what is one request and no more, with a head like the last one; False when it is not just that."""
        door = self._door
        if self._incoming.read_bytes or self._writing_paused or self._ahead.waiting_bytes or door.gate is not None:
            return False
        if not known.is_all_of(data, door.paths):
            return False
        length = known.length
        if length > door.limits.body_bytes or not door.budget.take(length):
            return False
        if self._unsent:
            self.flush()
        self._held_bytes = length
        self._keep_alive = known.head.keep_alive
        self._state = _RUNNING
        self.deadline_s = NEVER
        self._arrived_s = now_s = time.monotonic()
        request = known.request(door.new_request_id, self._client, now_s, data[known.end :])
        exchange = self._exchange = Http1Exchange(request, self._transport, self)
        try:
            door.serve(exchange)
        except WarmrouteError as error:
            self._refuse(error)
        return True

    def _take_known(self, known: KnownRequest, data: bytes) -> int:
        """Take in a head like the last one, and its body if all of it is there; return the place after them."""
        door, at, length = self._door, known.end, known.length
        self._keep_alive = known.head.keep_alive
        request = self._request = known.request(door.new_request_id, self._client, self._arrived_s)
        if door.gate is not None:
            self._refusal = door.gate.admit(request)
            if self._refusal is not None and length > DISCARD_BYTES:
                raise self._refusal
        end = at + length
        if not length:
            self._request_completed(b"")
        elif end <= len(data) and length <= door.limits.body_bytes and self._refusal is None:
            if not door.budget.take(length):
                raise OverloadedError(BUDGET_SPENT, retry_after_s=1)
            self._held_bytes = length
            self._request_completed(data[at:end])
            return end
        else:
            self._body = IncomingBody(length, door.limits.body_bytes, door.budget, stored=self._refusal is None)
            self._state = _BODY
        return at

    def _take_head(self, data: bytes, at: int) -> int:
        """Feed the head as far as it goes; return the place after it."""
        at = self._incoming.feed(data, at, self._door.limits.header_bytes)
        head = self._incoming.take()
        if head is not None:
            self._head_completed(head, data, at)
            if self._state is _GONE:
                return len(data)  # handed over
        return at

    def _head_completed(self, head: RequestHead, data: bytes, end: int) -> None:
        """Begin the request of a head that ends at a place."""
        door, raw = self._door, self._incoming.raw
        self._keep_alive = head.keep_alive
        raw_path, query = split_target(head.target)
        if door.admin_handoff is not None and is_admin(raw_path):
            self._hand_over(head, data[end:])
            return
        path = door.paths.match(raw_path)
        self._request = Request(
            request_id=head.request_id or door.new_request_id(),
            method=head.method,
            target=head.target,
            path=path or raw_path.decode("latin-1"),
            query=query,
            headers=head.headers,
            version=head.version,
            client=self._client,
            arrived_s=self._arrived_s,
            framed=head.chunked or head.content_length is not None,
            dropped=head.dropped,
            explain=head.explain,
        )
        length = head.content_length or 0
        if path is None or door.gate is not None:
            self._refusal = door.objection(self._request, is_path=path is not None)
            if self._refusal is not None and (head.chunked or head.expects_continue or length > DISCARD_BYTES):
                raise self._refusal
        if path is not None and raw is not None and length and not head.expects_continue:
            digits = length_digits(raw)
            self._known = None if digits is None else KnownRequest(raw, digits, head, door.paths, path, query)
        if not head.chunked and not length:
            self._request_completed(b"")
            return
        wanted = None if head.chunked else length
        self._body = IncomingBody(wanted, door.limits.body_bytes, door.budget, stored=self._refusal is None)
        self._state = _BODY
        if head.expects_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _take_body(self, data: bytes, at: int) -> int:
        """Feed the body; return the place after it."""
        body = self._body
        assert body is not None  # noqa: S101 - for the type alone: set when the head was completed
        at = body.feed(data, at)
        if body.done:
            self._request_completed(body.take_content())
        return at

    def _request_completed(self, content: bytes) -> None:
        request, self._request = self._request, None
        assert request is not None  # noqa: S101 - for the type alone: set when the head was completed
        request.body = content
        self._state = _RUNNING
        self.deadline_s = NEVER
        exchange = self._exchange = Http1Exchange(request, self._transport, self)
        refusal, self._refusal = self._refusal, None
        if refusal is None:
            self._door.serve(exchange)
        else:
            self._door.refuse(exchange, refusal)

    def _take_up_ahead(self) -> None:
        """Go on with what came while a request was answered."""
        if self._writing_paused:
            return
        self._resume_reading()
        if self._ahead.waiting_bytes:
            self._arrived_s = time.monotonic()
            self._consume(*self._ahead.take())
        if self._half_closed is not None and self._state in (_HEAD, _BODY):
            self._transport.close()
            self._await_close()

    def _refuse(self, error: WarmrouteError) -> None:
        """Answer for the last time on this connection."""
        self._keep_alive = False
        request, self._request = self._request, None
        if request is None:
            request = Request(self._door.new_request_id(), "", b"", "", b"", [], "1.1", self._client, self._arrived_s)
        self.body_released()
        exchange = self._exchange = Http1Exchange(request, self._transport, self)
        self._door.refuse(exchange, error)

    def _hand_over(self, head: RequestHead, rest: bytes) -> None:
        """Give the connection to admin for one request.

        For one alone: the client's next request on it may be for an engine. So it is told to close, and clients that
        keep connections open a new one.
        """
        handoff = self._door.admin_handoff
        assert handoff is not None  # noqa: S101 - for the type alone: the caller looked
        self._detach()
        handoff(self._transport, head.again(b"connection: close") + rest)
