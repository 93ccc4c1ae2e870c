"""The Exchange of a client's HTTP/1.x connection: how an answer is framed on the wire."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Protocol

from router.proxy.cors import without_engines_cors
from router.proxy.exchange import Exchange, Framing, Request
from router.proxy.hop_by_hop import joined, status_line
from router.proxy.known_heads import KnownAnswer

JOINED_BYTES = 16 * 1_024
"""Up to this size bytes are copied to go out as one piece: cheaper than to tell the kernel of two."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ExchangeOwner(Protocol):
    """The connection that carries an exchange."""

    def exchange_ended(self, *, keep: bool) -> None:
        """Its answer was written as a whole; `keep` tells whether the connection may serve another request."""

    def exchange_aborted(self) -> None:
        """Its answer was cut: the connection is closing."""

    def body_held(self, size_bytes: int) -> bool:
        """The request's body is this large now; False when that is too much."""

    def body_released(self) -> None:
        """The request's body is needed no more."""

    def keeps_alive(self) -> bool:
        """Whether this connection may serve another request after this one."""

    def may_hold(self) -> bool:
        """Whether an answer that is complete may go out a moment later, by `send_soon`."""

    def send_soon(self, data: bytes) -> None:
        """Write, at the turn's end at the latest."""


class Http1Exchange(Exchange):
    """One request of a connection and its answer.

    Attributes:
        started: Whether the head was sent.
        wrote: Whether bytes of the body were.
        framing: How the body is framed, once started.
    """

    __slots__ = ("_chunks", "_done", "_held", "_keep", "_owner", "_transport", "framing", "started", "wrote")

    def __init__(self, request: Request, transport: asyncio.Transport, owner: ExchangeOwner) -> None:
        super().__init__(request)
        self._transport = transport
        self._owner = owner
        self._keep = False
        self._done = False
        self._held = b""
        self._chunks = False
        self.started = False
        self.wrote = False
        self.framing = Framing.NONE

    @property
    def takes_chunked(self) -> bool:
        """HTTP/1.0 knows no chunked coding."""
        return self.request.version == "1.1"

    def start(
        self,
        status: int,
        reason: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        framing: Framing,
        *,
        more: bool = False,
        lines: bytes = b"",
    ) -> None:
        """Send the head, or hold it for the bytes that follow at once: one system call instead of two."""
        if self._done:
            return
        self.started = True
        self.framing = framing
        version = self.request.version
        self._chunks = framing is Framing.PLAIN and version == "1.1"
        # Without chunked coding the end of the connection is the end of a body of unknown length.
        self._keep = self._owner.keeps_alive() and (framing is not Framing.PLAIN or version == "1.1")
        if self.request.cors is not None:
            lines = without_engines_cors(lines) + self.request.cors
        head = status_line(status, reason) + lines
        if headers:
            head += joined(headers)
        if self._chunks or framing is Framing.CHUNKED:
            head += b"transfer-encoding: chunked\r\n"
        if not self._keep:
            head += b"connection: close\r\n"
        elif version == "1.0":
            head += b"connection: keep-alive\r\n"
        head += b"\r\n"
        if more:
            self._held = head
        else:
            self._transport.write(head)

    def answer(self, known: KnownAnswer, own: bytes, data: bytes) -> None:
        """Send head and body in one piece where nothing has to be changed or kept apart."""
        request = self.request
        plain = request.cors is None and request.version == "1.1" and len(data) <= JOINED_BYTES
        if self._done or not plain or not self._owner.may_hold():
            super().answer(known, own, data)
            return
        self.started = self.wrote = self._keep = True
        self.framing = Framing.LENGTH
        self._owner.send_soon(known.passed_on(own, data))

    def write(self, data: bytes) -> None:
        """Send bytes of the body."""
        if self._done or not data:
            return
        self.wrote = True
        if self._chunks:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        held = self._held
        if not held:
            self._transport.write(data)
            return
        self._held = b""
        if len(data) <= JOINED_BYTES:
            self._transport.write(held + data)
        else:
            self._transport.writelines((held, data))

    def end(self) -> None:
        """The answer is complete."""
        if self._done:
            return
        self._done = True
        last = b"0\r\n\r\n" if self._chunks else b""
        if self._held or last:
            self._transport.write(self._held + last)
        self._owner.exchange_ended(keep=self._keep)

    def abort(self) -> None:
        """Cut the answer.

        A plain close tells the client: a length or a last chunk is missing. Where the end of the connection is the end
        of the body, only a reset does.
        """
        if self._done:
            return
        self._done = True
        if self.started and self.framing is Framing.PLAIN and self.request.version == "1.0":
            connected = self._transport.get_extra_info("socket")
            if connected is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
        else:
            self._transport.close()
        self._owner.exchange_aborted()

    def hold_body(self, size_bytes: int) -> bool:
        """Have the body counted anew."""
        return self._owner.body_held(size_bytes)

    def release_body(self) -> None:
        """Give the body's memory back."""
        self.request.body = b""
        self._owner.body_released()

    def client_gone(self) -> None:
        """The connection is lost: nothing is written any more, and whoever answers is told."""
        if self._done:
            return
        self._done = True
        if self.listener is not None:
            self.listener.client_left()
