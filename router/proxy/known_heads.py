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
from router.proxy.head_pattern import DIGITS, Pattern, stamped, whole_answer
from router.proxy.hop_by_hop import crossing_lines, joined, status_line
from router.proxy.paths import AllowedPaths
from router.proxy.request_head import RequestHead

MAX_BYTES = 4_096
"""Longer heads are not kept: there may be ten thousand idle connections."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)


class KnownRequest(Pattern):
    """The head of a request for a path that is served, with a Content-Length.

    Attributes:
        head: What it says, but for the length.
    """

    __slots__ = ("_paths", "_request", "head")

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
        self._request = Request(
            head.request_id or "",
            head.method,
            head.target,
            path,
            query,
            head.headers,
            head.version,
            "",
            0.0,
            framed=True,
            dropped=head.dropped,
            explain=head.explain,
            crossing=crossing_lines(head.headers, head.dropped),
        )
        method = head.method.encode("ascii")
        self._request.begin = b"%b %b%b HTTP/1.1\r\nhost: " % (method, path.encode("ascii"), query)

    def fits(self, data: bytes, at: int, paths: AllowedPaths) -> bool:
        """Tell whether this head stands at a place, all of it, and its path is still served."""
        return self._paths is paths and self.matches(data, at)

    def is_all_of(self, data: bytes, paths: AllowedPaths) -> bool:
        """Tell whether it is this head and its body, not empty, and no more, and its path is still served."""
        return self._paths is paths and self.is_whole(data)

    def request(self, new_request_id: Callable[[], str], client: str, arrived_s: float, body: bytes = b"") -> Request:
        """Return the request of the head that matched last; see `Request` for the arguments."""
        request = stamped(self._request)
        if not request.request_id:
            request.request_id = new_request_id()
        request.client = client
        request.arrived_s = arrived_s
        request.body = body
        return request


class KnownAnswer(Pattern):
    """The head of an answer with a Content-Length.

    Attributes:
        head: What it says, but for the length.
        keep: Whether the engine keeps the connection.
    """

    __slots__ = ("_begin", "_lines", "head", "keep")

    def __init__(self, raw: bytes, digits: tuple[int, int], head: AnswerHead, keep: bool) -> None:
        super().__init__(raw, digits)
        self.head = head
        length = next(place for place, pair in enumerate(head.headers) if pair[0].lower() == b"content-length")
        name = head.headers[length][0]
        self._lines = (joined(head.headers[:length]) + name + b": ", b"\r\n" + joined(head.headers[length + 1 :]))
        self._begin = status_line(head.status, head.reason) + self._lines[0]
        self.keep = keep

    def answer(self) -> AnswerHead:
        """Return what the head that matched last says."""
        head, (before, after) = self.head, self._lines
        length = self.length
        lines = b"%b%d%b" % (before, length, after)
        return AnswerHead(head.status, head.reason, [], Framing.LENGTH, length, head.readable, lines)

    def passed_on(self, own: bytes, data: bytes) -> bytes:
        """Return the answer that matched last as it goes to a client that keeps its connection.

        Args:
            own: The router's own lines.
            data: The whole answer, head and body.
        """
        return whole_answer(self._begin, self._lines[1], own, data, self.end)


def length_digits(raw: bytes) -> tuple[int, int] | None:
    """Return where the digits of a head's Content-Length begin and end; None where it is not worth keeping."""
    if len(raw) > MAX_BYTES:
        return None
    match = _LENGTH.search(raw)
    if match is None or match.end(1) - match.start(1) > DIGITS:
        return None
    return match.span(1)
