"""gRPC over HTTP/2's streams: messages with their lengths before them, a status at the end; and its health checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol
from urllib.parse import quote

from router.picker import protobuf
from router.picker.frames import literal
from router.picker.streams import Headers, Receiver, Stream

_PREFIX_BYTES = 5
_HEAD = b"\x88" + literal(b"content-type", b"application/grpc")
"""`:status: 200` is number 8 of HPACK's table."""


class Status(IntEnum):
    """gRPC's."""

    OK = 0
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class Handler(Protocol):
    """Who serves one call."""

    def message(self, message: bytes) -> None:
        """A message came."""

    def too_long(self) -> None:
        """A message is longer than is taken; nothing more is told."""

    def ended(self) -> None:
        """No more will come: finish the call."""

    def cancelled(self) -> None:
        """The caller is gone; nothing can be sent."""


class Call:
    """One call, for who serves it.

    Args:
        longest_bytes: The longest message that is taken.
    """

    def __init__(self, stream: Stream, longest_bytes: int) -> None:
        self._stream = stream
        self._longest_bytes = longest_bytes
        self._partial = bytearray()
        self._has_begun = False
        self.is_over = False
        self.handler: Handler | None = None

    def send(self, message: bytes) -> None:
        """Send a message; nothing, once the call is over."""
        if not self.is_over:
            if not self._has_begun:
                self._has_begun = True
                self._stream.send_headers(_HEAD)
            self._stream.send(b"\0" + len(message).to_bytes(4, "big") + message)

    def finish(self, status: Status = Status.OK, message: str = "") -> None:
        """End the call, once."""
        if not self.is_over:
            self.is_over = True
            block = literal(b"grpc-status", b"%d" % status)
            if message:
                block += literal(b"grpc-message", quote(message)[:120].encode("ascii"))
            self._stream.send_headers(block if self._has_begun else _HEAD + block, ends=True)

    # -- what comes, as a stream's `Receiver` -------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        """See `Receiver`: tell of the messages that are whole."""
        if self.is_over:
            return
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < _PREFIX_BYTES:
                return
            length = self._length(partial, 0)
            if length is None or len(partial) < _PREFIX_BYTES + length:
                return
            data = bytes(partial)
            partial.clear()
        at, size = 0, len(data)
        while size - at >= _PREFIX_BYTES:
            length = self._length(data, at)
            if length is None:
                return
            end = at + _PREFIX_BYTES + length
            if end > size:
                break
            if self.handler is not None:
                self.handler.message(data[at + _PREFIX_BYTES : end])
            at = end
        if at < size:
            partial += data[at:]

    def _length(self, data: bytes | bytearray, at: int) -> int | None:
        """Return how long a message is; None: it can't be taken, or the call is over already."""
        if self.is_over:
            return None
        if data[at]:
            self.finish(Status.UNIMPLEMENTED, "messages can't be compressed")
            self.cancelled()
            return None
        length = int.from_bytes(data[at + 1 : at + _PREFIX_BYTES], "big")
        if length > self._longest_bytes:
            if self.handler is not None:
                self.handler.too_long()
            self.finish(Status.RESOURCE_EXHAUSTED, "the message is too long")
            return None
        return length

    def ended(self) -> None:
        """See `Receiver`."""
        if self.handler is not None and not self.is_over:
            if self._partial:
                self.finish(Status.INTERNAL, "a message is cut short")
                self.handler.cancelled()
            else:
                self.handler.ended()

    def cancelled(self) -> None:
        """See `Receiver`."""
        self.is_over = True
        if self.handler is not None:
            self.handler.cancelled()


Serve = Callable[[Call], Handler]


class Methods:
    """What a server serves, by path.

    Args:
        methods: /SERVICE/METHOD.
        longest_bytes: The longest message that is taken; may be changed.
    """

    def __init__(self, methods: Mapping[bytes, Serve], longest_bytes: int) -> None:
        self._methods = methods
        self.longest_bytes = longest_bytes

    def accept(self, stream: Stream, headers: Headers) -> Receiver:
        """See `Accept`."""
        call = Call(stream, self.longest_bytes)
        serve = self._methods.get(dict(headers).get(b":path", b""))
        if serve is None:
            call.finish(Status.UNIMPLEMENTED, "there is no such method")
        else:
            call.handler = serve(call)
        return call


class Health:
    """grpc.health.v1.Health.

    Args:
        services: Names of those that it tells of; all have one state.
    """

    def __init__(self, services: frozenset[bytes]) -> None:
        self._services = services
        self._is_serving = True
        self._watching: set[Call] = set()
        self.methods: dict[bytes, Serve] = {
            b"/grpc.health.v1.Health/Check": lambda call: _Asked(self, call, is_watch=False),
            b"/grpc.health.v1.Health/Watch": lambda call: _Asked(self, call, is_watch=True),
        }

    def leave(self) -> None:
        """Say NOT_SERVING from now on. Safe to call twice."""
        if self._is_serving:
            self._is_serving = False
            for call in self._watching:
                call.send(self._told())

    def ask(self, call: Call, message: bytes, *, is_watch: bool) -> None:
        """Answer a question, and go on doing so where it is watched.

        Raises:
            MalformedError: It is none.
        """
        is_known = (protobuf.message_in(protobuf.read(message), 1) or b"") in self._services
        if is_watch:
            call.send(self._told() if is_known else protobuf.number_field(1, 3))  # SERVICE_UNKNOWN
            if is_known:
                self._watching.add(call)
        elif is_known:
            call.send(self._told())
            call.finish()
        else:
            call.finish(Status.NOT_FOUND, "there is no such service")

    def forget(self, call: Call) -> None:
        """It watches no more."""
        self._watching.discard(call)

    def end(self) -> None:
        """End what is watched: else a connection would not be done before the watcher is."""
        for call in list(self._watching):
            call.finish()
        self._watching.clear()

    def _told(self) -> bytes:
        return protobuf.number_field(1, 1 if self._is_serving else 2)


class _Asked:
    """A question to `Health`."""

    def __init__(self, health: Health, call: Call, *, is_watch: bool) -> None:
        self._health = health
        self._call = call
        self._is_watch = is_watch

    def message(self, message: bytes) -> None:
        """See `Handler`."""
        try:
            self._health.ask(self._call, message, is_watch=self._is_watch)
        except protobuf.MalformedError as error:
            self._call.finish(Status.INTERNAL, str(error))

    def too_long(self) -> None:
        """See `Handler`."""

    def ended(self) -> None:
        """See `Handler`: who watches has asked all there is to ask."""
        if not self._is_watch:
            self._call.finish(Status.INTERNAL, "no message came")

    def cancelled(self) -> None:
        """See `Handler`."""
        self._health.forget(self._call)
