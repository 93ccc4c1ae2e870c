"""HTTP/2's streams as who answers on them sees them: what is sent waits here until the peer takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from router.picker import frames

Headers = list[tuple[bytes, bytes]]


class Receiver(Protocol):
    """Who takes what comes on a stream."""

    def data(self, data: bytes) -> None:
        """A part of the body came."""

    def ended(self) -> None:
        """The peer sends no more."""

    def cancelled(self) -> None:
        """The stream is gone; nothing can be sent."""


Accept = Callable[["Stream", Headers], Receiver]


class Link(Protocol):
    """The connection, for its streams.

    Attributes:
        window_bytes: How much the peer takes on all its streams together.
        blocked: Streams that wait for a window, in the order that they came to do so.
    """

    window_bytes: int
    max_frame_bytes: int
    blocked: dict[int, Stream]

    def write(self, data: bytes) -> None:
        """Write frames."""

    def answered(self, stream: Stream) -> None:
        """Everything was sent on a stream."""


class Stream:
    """One stream, for who answers on it.

    Attributes:
        window_bytes: How much the peer takes on it now; below zero where it changed its mind.
    """

    __slots__ = (
        "_connection",
        "_last",
        "_offset",
        "_pending",
        "consumed_bytes",
        "has_ended",
        "receiver",
        "stream_id",
        "window_bytes",
    )

    def __init__(self, connection: Link, stream_id: int, window_bytes: int) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.window_bytes = window_bytes
        self.consumed_bytes = 0
        self.has_ended = False
        self.receiver: Receiver | None = None
        self._pending: deque[bytes] = deque()
        self._offset = 0
        self._last: bytes | None = None

    def send_headers(self, block: bytes, *, ends: bool = False) -> None:
        """Send headers that are encoded."""
        if ends:
            self._last = block
            self.pump()
        else:
            self._connection.write(frames.frame(frames.HEADERS, frames.END_HEADERS, self.stream_id, block))

    def send(self, data: bytes) -> None:
        """Send a part of the body as soon as the peer takes it."""
        self._pending.append(data)
        self.pump()

    def pump(self) -> None:
        """Send what the windows let pass."""
        connection, pending = self._connection, self._pending
        while pending:
            data = pending[0]
            left = len(data) - self._offset
            size = min(left, self.window_bytes, connection.window_bytes, connection.max_frame_bytes)
            if size <= 0 < left:
                connection.blocked[self.stream_id] = self
                return
            piece = data if size == len(data) else data[self._offset : self._offset + size]
            connection.write(frames.frame(frames.DATA, 0, self.stream_id, piece))
            self.window_bytes -= size
            connection.window_bytes -= size
            self._offset += size
            if size == left:
                pending.popleft()
                self._offset = 0
        if self._last is not None:
            flags = frames.END_HEADERS | frames.END_STREAM
            connection.write(frames.frame(frames.HEADERS, flags, self.stream_id, self._last))
            self._last = None
            connection.answered(self)
