"""Bytes of pipelined requests that wait while one is answered."""

from __future__ import annotations

AHEAD_BYTES = 256 * 1_024
"""So many wait; with more, reading pauses."""
AHEAD_S = 0.5
"""But only for so long: unread bytes hide that the client leaves. Then they are thrown away, and the connection ends
with the answer that runs."""


class Ahead:
    """What waits. One segment may hold thousands of requests, so it is kept whole with a place in it: to cut each
    request off would copy all that follows, once a request.

    Attributes:
        waiting_bytes: How much.
    """

    __slots__ = ("_at", "_data", "waiting_bytes")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self.waiting_bytes = 0

    def add(self, data: bytes, at: int = 0) -> None:
        """Keep bytes from a place on, after those that wait."""
        if self.waiting_bytes:
            self._data = self._data[self._at :] + data[at:]
            self._at = 0
        else:
            self._data, self._at = data, at
        self.waiting_bytes = len(self._data) - self._at

    def take(self) -> tuple[bytes, int]:
        """Return all that waits: bytes, and the place where it begins. Nothing waits then."""
        data, at = self._data, self._at
        self.clear()
        return data, at

    def clear(self) -> None:
        """Throw it away."""
        self._data, self._at, self.waiting_bytes = b"", 0, 0
