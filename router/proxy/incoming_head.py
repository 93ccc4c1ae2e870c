"""A request's head while it comes in: its end, its limit."""

from __future__ import annotations

from router.errors import HeadersTooLargeError, MalformedRequestError
from router.proxy.request_head import RequestHead

_HEAD_END = b"\r\n\r\n"


class IncomingHead:
    """Reads one head after the other; split anywhere.

    Attributes:
        read_bytes: Of the head that comes in, empty lines before it not counted; 0: none has begun.
        raw: The bytes of the head that was taken last, if they came in one piece; else None.
    """

    __slots__ = ("_head", "_tail", "raw", "read_bytes")

    def __init__(self) -> None:
        self._head: RequestHead | None = None
        self._tail = b""
        self.read_bytes = 0
        self.raw: bytes | None = None

    def feed(self, data: bytes, at: int, limit_bytes: int) -> int:
        """Take in bytes from a place on; return the place up to where they belong to this head.

        Raises:
            HeadersTooLargeError: It is over its limit.
            MalformedRequestError, UpgradeRefusedError: See `RequestHead.feed`.
        """
        head = self._head
        if head is None:
            head = self._head = RequestHead()
        tail = self._tail
        if tail:
            found = (tail + data[at:]).find(_HEAD_END)
            end = found + 4 - len(tail) + at
        else:
            found = data.find(_HEAD_END, at)
            end = found + 4
        if found < 0:
            end = len(data)
        taken = data[at:end]
        self.raw = None if self.read_bytes else taken
        self.read_bytes += len(taken)
        if self.read_bytes > limit_bytes:
            raise HeadersTooLargeError(
                f"the request line and headers are over {limit_bytes} bytes (`limits.header_bytes`)"
            )
        head.feed(taken)
        if head.complete:
            if found < 0:
                raise MalformedRequestError("malformed HTTP request: the head does not end with an empty line")
        elif not head.begun:
            # RFC 9112, 2.2: empty lines before a request line are ignored.
            self.read_bytes = 0
            self._tail = b""
        elif found >= 0:
            raise MalformedRequestError("malformed HTTP request")
        else:
            self._tail = (tail + taken)[-3:]
        return end

    def take(self) -> RequestHead | None:
        """Return the head if it is complete, and begin the next one; else None."""
        head = self._head
        if head is None or not head.complete:
            return None
        self._head = None
        self._tail = b""
        self.read_bytes = 0
        return head
