"""Heads that come again: a client sends the same head with each request, an engine with each answer, but for a length.

Parsing a head is a callback for each of its lines. So a connection keeps the last head that it read, and compares the
next one with it: equal in every byte around the digits of Content-Length, it says the same as before. Nothing is
guessed: any other byte, and it is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from router.proxy.answer_head import AnswerHead
from router.proxy.exchange import Framing, Request
from router.proxy.hop_by_hop import crossing_lines, joined
from router.proxy.paths import AllowedPaths
from router.proxy.request_head import RequestHead

MAX_BYTES = 4_096
"""Longer heads are not kept: there may be ten thousand idle connections."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)
_DIGITS = 18
"""More of them than any length has that is served; llhttp refuses what overflows 64 bits."""


class _Pattern:
    """A head's bytes around the digits of its length."""

    __slots__ = ("_after", "_after_bytes", "_before", "_before_bytes", "end", "length")

    def __init__(self, raw: bytes, digits: tuple[int, int]) -> None:
        self._before = raw[: digits[0]]
        self._after = raw[digits[1] :]
        self._before_bytes = len(self._before)
        self._after_bytes = len(self._after)
        self.length = 0
        """Of the head that matched last."""
        self.end = 0
        """Where it ended."""

    def matches(self, data: bytes, at: int) -> bool:
        """Tell whether this head stands at a place, all of it."""
        if not data.startswith(self._before, at):
            return False
        begin = at + self._before_bytes
        end = data.find(b"\r", begin, begin + _DIGITS + 1)
        digits = data[begin:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return False
        self.length = int(digits)
        self.end = end + self._after_bytes
        return True


class KnownRequest(_Pattern):
    """The head of a request for a path that is served, with a Content-Length.

    Attributes:
        head: What it says, but for the length.
    """

    __slots__ = ("_crossing", "_path", "_paths", "_query", "head")

    def __init__(
        self, raw: bytes, digits: tuple[int, int], head: RequestHead, paths: AllowedPaths, path: str, query: bytes
    ) -> None:
        """Keep a head.

        Args:
            digits: Where those of its length are.
            paths: The allow-list that it was held against.
            path, query: Of its target.
        """
        super().__init__(raw, digits)
        self.head = head
        self._paths = paths
        self._path = path
        self._query = query
        self._crossing = crossing_lines(head.headers, head.dropped)

    def fits(self, data: bytes, at: int, paths: AllowedPaths) -> bool:
        """Tell whether this head stands at a place, all of it, and its path is still served."""
        return self._paths is paths and self.matches(data, at)

    def request(self, new_request_id: Callable[[], str], client: str, arrived_s: float) -> Request:
        """Return the request of the head that matched last, without its body; see `Request` for the arguments."""
        head = self.head
        return Request(
            head.request_id or new_request_id(),
            head.method,
            head.target,
            self._path,
            self._query,
            head.headers,
            head.version,
            client,
            arrived_s,
            b"",
            True,
            head.dropped,
            head.explain,
            self._crossing,
        )


class KnownAnswer(_Pattern):
    """The head of an answer with a Content-Length.

    Attributes:
        keep: Whether the engine keeps the connection.
    """

    __slots__ = ("_head", "_lines", "keep")

    def __init__(self, raw: bytes, digits: tuple[int, int], head: AnswerHead, keep: bool) -> None:
        super().__init__(raw, digits)
        self._head = head
        length = next(place for place, pair in enumerate(head.headers) if pair[0].lower() == b"content-length")
        name = head.headers[length][0]
        self._lines = (joined(head.headers[:length]) + name + b": ", b"\r\n" + joined(head.headers[length + 1 :]))
        self.keep = keep

    def answer(self) -> AnswerHead:
        """Return what the head that matched last says."""
        head, (before, after) = self._head, self._lines
        length = self.length
        lines = b"%b%d%b" % (before, length, after)
        return AnswerHead(head.status, head.reason, [], Framing.LENGTH, length, head.readable, lines)


def length_digits(raw: bytes) -> tuple[int, int] | None:
    """Return where the digits of a head's Content-Length begin and end; None where it is not worth keeping."""
    if len(raw) > MAX_BYTES:
        return None
    match = _LENGTH.search(raw)
    if match is None or match.end(1) - match.start(1) > _DIGITS:
        return None
    return match.span(1)
