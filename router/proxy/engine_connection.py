"""One connection to an engine: a request out, its answer in, and so on.

llhttp reads the answer's head, and follows the chunked coding to know where it ends. The body's bytes go to the sink as
they were received: nothing is decoded, joined or delayed.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol, cast

import httptools

from router.proxy.answer_head import AnswerHead, judge
from router.proxy.exchange import Framing, Headers
from router.proxy.known_heads import KnownAnswer, length_digits
from router.proxy.turn import MANY, Turn

JOINED_BYTES = 64 * 1_024
"""Up to this size a body is copied to go out with its head as one piece: cheaper than to tell the kernel of two, and
than to wake an engine by itself (`turn`)."""
HEAD_BYTES = 256 * 1_024
"""Longest head of an answer."""
_HEAD_END = b"\r\n\r\n"


_CHUNKED = Framing.CHUNKED  # looked up once: a stream's every chunk asks


class Failure(Enum):
    """How an answer fails."""

    NOTHING_RECEIVED = "nothing received"
    """Closed before a byte of it came."""
    BROKEN = "broken"
    """Closed within its head, or not HTTP."""
    CUT = "cut"
    """Its head was good; its body broke off or its framing did."""


class AnswerSink(Protocol):
    """Whoever takes an answer: `answer_started`, any number of `answer_bytes`, then `answer_ended`, or `answer_failed`
    at any time. Nothing follows the last two."""

    def answer_started(self, head: AnswerHead, *, more: bool) -> None:
        """The final head is there (1xx are passed over); `more`: so is what follows it, and is told next."""

    def answer_decoded(self, piece: bytes) -> None:
        """A piece of a CHUNKED body without its coding; comes before the `answer_bytes` that hold it."""

    def answer_bytes(self, data: bytes) -> None:
        """Bytes of the body, as received, in the head's framing."""

    def answer_whole(self, known: KnownAnswer, data: bytes) -> None:
        """`answer_started` and `answer_bytes` in one: an answer that came in one piece, with a head that is known and
        a body."""

    def answer_ended(self) -> None:
        """The answer is complete."""

    def answer_failed(self, failure: Failure) -> None:
        """It never will be."""


class ConnectionOwner(Protocol):
    """The pool."""

    def connection_idle(self, connection: EngineConnection) -> None:
        """It may serve another request."""

    def connection_closed(self, connection: EngineConnection) -> None:
        """It is gone."""


class EngineConnection(asyncio.Protocol):
    """Serves one request at a time.

    Attributes:
        served: Requests that were sent on it.
        idle_until_s: Clock (monotonic) after which it must not be used again, while idle; the pool's.
    """

    def __init__(self, owner: ConnectionOwner, turn: Turn) -> None:
        self._owner = owner
        self._turn = turn
        self._unsent = b""
        self._connected: asyncio.Transport | None = None
        self._sink: AnswerSink | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._bodiless = False
        self._received = False
        self._head: AnswerHead | None = None
        self._head_begin = b""
        self._headers: Headers = []
        self._reason = b""
        self._complete = False
        self._trailing = False
        self._left_bytes = 0
        self._keep = False
        self._paused = False
        self._known: KnownAnswer | None = None
        self.served = 0
        self.idle_until_s = 0.0

    # -- for the forwarder and the pool -------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        connected = self._connected
        return self._sink is None and connected is not None and not connected.is_closing()

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._connected is not None  # noqa: S101 - for the type alone: requests follow the connection
        return self._connected

    def send(self, sink: AnswerSink, head: bytes, body: bytes, *, bodiless: bool) -> None:
        """Send a request; the answer goes to the sink.

        Args:
            bodiless: Whether the answer has no body whatever its headers say (HEAD).
        """
        if len(body) <= JOINED_BYTES:
            self.send_whole(sink, head + body, bodiless=bodiless)
        else:
            self._begin(sink, bodiless=bodiless)
            self._transport.writelines((head, body))

    def send_whole(self, sink: AnswerSink, request: bytes, *, bodiless: bool) -> None:
        """Send a short request, head and body, now or at the turn's end; see `send`."""
        self._begin(sink, bodiless=bodiless)
        if self._turn.expecting >= MANY:
            self._unsent = request
            self._turn.hold(self)
        else:
            self._transport.write(request)

    def _begin(self, sink: AnswerSink, *, bodiless: bool) -> None:
        self._sink = sink
        self._bodiless = bodiless
        self._received = False
        self._head = None
        self._head_begin = b""
        self._complete = False
        self.served += 1

    def flush(self) -> None:
        """Write the request that is held."""
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._transport.write(unsent)

    def abort(self) -> None:
        """Close at once; the sink hears nothing more. The engine sees it and stops its work."""
        self._sink = None
        self._unsent = b""
        if self._connected is not None:
            self._connected.abort()

    def pause_reading(self) -> None:
        """Take in nothing: the client is slow."""
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        # uvloop's transports do not derive from asyncio's classes.
        self._connected = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        sink, head = self._sink, self._head
        if sink is None:
            # An engine that speaks unasked, or after its answer: nothing on this connection can be trusted.
            self._transport.abort()
            return
        self._received = True
        if head is None:
            self._take_heads(data)
        elif head.framing is _CHUNKED:
            self._take_chunked(data, sink)
        else:
            self._take_body(data)

    def eof_received(self) -> bool:
        """The engine has closed: the end of a body that has no other, else a failure (see `connection_lost`)."""
        if self._sink is not None and self._head is not None and self._head.framing is Framing.PLAIN:
            self._keep = False
            self._finish(clean=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._unsent = b""
        if self._sink is not None:
            if self._head is not None:
                self._break(Failure.CUT)
            else:
                self._break(Failure.BROKEN if self._received else Failure.NOTHING_RECEIVED)
        self._owner.connection_closed(self)

    # -- llhttp's callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A message begins: a second one where one was asked for is rubbish."""
        if self._complete and self._head is not None:
            self._trailing = True
        self._complete = False
        self._headers = []
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        """The reason phrase."""
        self._reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which passes with the body's bytes."""
        if self._head is None:
            self._headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """The head's last line. Asked here, as llhttp forgets the head when the message is complete."""
        parser = self._parser
        self._keep = parser is not None and parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        """A decoded piece of a chunked body."""
        if self._sink is not None:
            self._sink.answer_decoded(piece)

    def on_message_complete(self) -> None:
        """The last chunk, or a head without a body."""
        self._complete = True

    # -- the answer ---------------------------------------------------------------------------------------------------

    def _take_heads(self, data: bytes) -> None:
        if self._unsent:
            # It speaks before it was asked: whatever this answers, it is not the request that is held.
            self._break(Failure.NOTHING_RECEIVED)
            return
        known, sink = self._known, self._sink
        if self._head_begin:
            data = self._head_begin + data
            self._head_begin = b""
        elif known is not None and not self._bodiless and sink is not None and known.is_whole(data):
            self._head, self._keep = known.head, known.keep
            sink.answer_whole(known, data)
            if self._sink is sink:
                self._finish(clean=True)
            return
        elif known is not None and not self._bodiless and known.matches(data, 0):
            self._head = known.answer()
            self._left_bytes = known.length
            self._keep = known.keep
            data = data[known.end :]
        while self._head is None:
            end = data.find(_HEAD_END)
            if end < 0:
                if len(data) > HEAD_BYTES:
                    self._break(Failure.BROKEN)
                else:
                    self._head_begin = data
                return
            end += 4
            if end > HEAD_BYTES or not self._take_head(data if end == len(data) else data[:end]):
                self._break(Failure.BROKEN)
                return
            data = data[end:]
        sink = self._sink
        if sink is None:
            return
        framing = self._head.framing
        ended = framing is Framing.NONE or (framing is Framing.LENGTH and not self._left_bytes)
        sink.answer_started(self._head, more=ended or bool(data))
        if self._sink is not sink:
            return  # the sink aborted
        if ended:
            self._finish(clean=not data)
        elif data:
            self._take_body(data)

    def _take_head(self, data: bytes) -> bool:
        """Read one whole head; False when it is none that can be used."""
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        status = parser.get_status_code()
        if 100 <= status < 200:
            return status != 101 and self._complete
        head = judge(status, self._reason, self._headers, bodiless=self._bodiless)
        if head is None:
            return False
        self._head = head
        self._left_bytes = head.length
        if head.framing is Framing.LENGTH and not self._complete:
            digits = length_digits(data)
            self._known = None if digits is None else KnownAnswer(data, digits, head, self._keep)
        if head.framing is not Framing.CHUNKED and not self._complete:
            # The rest is counted here, so llhttp stands within a body that it never sees.
            self._parser = None
        return True

    def _take_body(self, data: bytes) -> None:
        head, sink = self._head, self._sink
        assert head is not None and sink is not None  # noqa: S101, PT018 - for the types alone
        if head.framing is Framing.CHUNKED:
            self._take_chunked(data, sink)
        elif head.framing is Framing.LENGTH:
            left = self._left_bytes
            if len(data) < left:
                self._left_bytes = left - len(data)
                sink.answer_bytes(data)
            else:
                sink.answer_bytes(data if len(data) == left else data[:left])
                self._finish(clean=len(data) == left)
        else:
            sink.answer_bytes(data)

    def _take_chunked(self, data: bytes, sink: AnswerSink) -> None:
        parser = self._parser
        assert parser is not None  # noqa: S101 - for the type alone: it is kept while chunks come
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._trailing = True
        if self._sink is not sink:
            return  # the sink aborted while it was fed
        if self._trailing:
            # Bad chunks, or bytes after the last one: which of them are the answer's can't be told any more.
            self._trailing = False
            self._break(Failure.CUT)
            return
        sink.answer_bytes(data)
        if self._complete:
            self._finish(clean=True)

    def _finish(self, *, clean: bool) -> None:
        """The answer is complete: say so, and go back to the pool if this connection may serve again."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        if self._bodiless:
            self._parser = None
        transport = self._transport
        keep = clean and self._keep and not transport.is_closing()
        # An answer that came before the whole request was sent (a refusal): the rest of it would be taken for the next.
        if keep and transport.get_write_buffer_size() == 0:
            if self._paused:
                self.resume_reading()
            self._owner.connection_idle(self)
        else:
            transport.abort()
        sink.answer_ended()

    def _break(self, failure: Failure) -> None:
        sink, self._sink = self._sink, None
        self._unsent = b""
        self._transport.abort()
        if sink is not None:
            sink.answer_failed(failure)
