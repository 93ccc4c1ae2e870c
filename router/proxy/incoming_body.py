"""A request's body while it comes in: its end, its limits, its memory."""

from __future__ import annotations

import io

from router.errors import BodyTooLargeError, OverloadedError
from router.proxy.chunked import ChunkedBody
from router.proxy.door import ByteBudget

BUDGET_SPENT = "the bodies of running requests fill `limits.buffered_bytes`"


class IncomingBody:
    """Gathers one body.

    Args:
        length: Content-Length, at least 1; None for chunked coding.
        limit_bytes: Longest body.
        budget: Bytes that all bodies together may hold; `release` gives back what this one took.
        stored: False to read the body and throw it away.
    """

    __slots__ = (
        "_budget",
        "_chunked",
        "_content",
        "_left_bytes",
        "_limit_bytes",
        "_size_bytes",
        "_stored",
        "_taken_bytes",
    )

    def __init__(self, length: int | None, limit_bytes: int, budget: ByteBudget, *, stored: bool) -> None:
        self._chunked = ChunkedBody() if length is None else None
        self._left_bytes = length or 0
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._stored = stored
        self._size_bytes = 0
        self._taken_bytes = 0
        self._content: bytes | io.BytesIO = b""
        if stored and self._left_bytes > limit_bytes:
            raise self._too_large()

    @classmethod
    def held(cls, taken_bytes: int, budget: ByteBudget) -> IncomingBody:
        """Return one that has come in already, and holds so much of the budget."""
        body = cls(0, 0, budget, stored=False)
        body._taken_bytes = taken_bytes
        return body

    @property
    def done(self) -> bool:
        """Whether the whole body is there."""
        return self._chunked.done if self._chunked is not None else self._left_bytes == 0

    def feed(self, data: bytes, at: int = 0) -> int:
        """Take in bytes from a place on; return the place up to where they belong to this body.

        Raises:
            MalformedRequestError: The chunked coding is broken.
            BodyTooLargeError: It is over its limit.
            OverloadedError: All bodies together are over theirs.
        """
        if self._chunked is not None:
            pieces, used = self._chunked.feed(data, at)
            for piece in pieces:
                self._store(piece)
            if self._size_bytes + self._chunked.left_bytes > self._limit_bytes:
                raise self._too_large()  # at the chunk's header: what follows would be read for nothing
            return used
        end = min(len(data), at + self._left_bytes)
        self._left_bytes -= end - at
        self._store(data[at:end])
        return end

    def take_content(self) -> bytes:
        """Return the body and hold it no more; it stays counted until `release`."""
        content, self._content = self._content, b""
        return content if isinstance(content, bytes) else content.getvalue()

    def hold(self, size_bytes: int) -> bool:
        """Count it as so many bytes from now on, as it grows or shrinks; False when they are not there."""
        more = size_bytes - self._taken_bytes
        if more > 0 and not self._budget.take(more):
            return False
        if more < 0:
            self._budget.give(-more)
        self._taken_bytes = size_bytes
        return True

    def release(self) -> None:
        """Its memory is free."""
        self._content = b""
        self._budget.give(self._taken_bytes)
        self._taken_bytes = 0

    def _store(self, piece: bytes) -> None:
        self._size_bytes += len(piece)
        if self._size_bytes > self._limit_bytes:
            raise self._too_large()
        if not self._stored:
            return
        if not self._budget.take(len(piece)):
            raise OverloadedError(BUDGET_SPENT, retry_after_s=1)
        self._taken_bytes += len(piece)
        if not self._content:
            self._content = piece
            return
        if isinstance(self._content, bytes):
            first, self._content = self._content, io.BytesIO()
            self._content.write(first)
        # A BytesIO grows in place and gives its bytes away without a copy: a large body is in memory once.
        self._content.write(piece)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body is over {self._limit_bytes} bytes (`limits.body_bytes`)")
