"""What an engine's head says: how its body ends, and which of its headers the client gets."""

from __future__ import annotations

from router.proxy.exchange import Framing, Headers
from router.proxy.hop_by_hop import NOT_TO_CLIENT

_NOTED = frozenset((b"connection", b"content-encoding", b"content-length", b"content-type", b"transfer-encoding"))
_READABLE = (b"application/json", b"text/event-stream")


class AnswerHead:
    """The head of an engine's answer.

    Attributes:
        headers: Those that go on to the client, raw and in order.
        length: Bytes of the body, for LENGTH.
        readable: Whether the body may hold token counts as text: JSON or events, not compressed.
        lines: The headers as they are sent, where they are joined already; then `headers` is empty.
    """

    __slots__ = ("framing", "headers", "length", "lines", "readable", "reason", "status")

    def __init__(
        self,
        status: int,
        reason: bytes,
        headers: Headers,
        framing: Framing,
        length: int = 0,
        readable: bool = False,
        lines: bytes = b"",
    ) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.framing = framing
        self.length = length
        self.readable = readable
        self.lines = lines

    def framed(self, framing: Framing) -> AnswerHead:
        """Return the same head of a body in another framing."""
        return AnswerHead(self.status, self.reason, self.headers, framing, self.length, self.readable, self.lines)


def judge(status: int, reason: bytes, headers: Headers, *, bodiless: bool) -> AnswerHead | None:
    """Look at each header once.

    Args:
        headers: As llhttp passed them: it has refused two lengths, malformed ones, and a length beside a coding.
        bodiless: The request was HEAD.

    Returns:
        None when the body is in a coding whose end can't be found.
    """
    kept: Headers = []
    length: int | None = None
    chunked = readable = encoded = False
    named: list[bytes] = []
    for pair in headers:
        lower = pair[0].lower()
        if lower in _NOTED:
            value = pair[1]
            if lower == b"content-type":
                readable = value.startswith(_READABLE)
            elif lower == b"content-length":
                length = int(value)
            elif lower == b"content-encoding":
                encoded = value.lower() != b"identity"
            elif lower == b"connection":
                named += [token.strip() for token in value.lower().split(b",")]
                continue
            else:
                if chunked or value.lower() != b"chunked":
                    return None
                chunked = True
                continue
            kept.append(pair)
        elif lower not in NOT_TO_CLIENT:
            kept.append(pair)
    if named:
        kept = [pair for pair in kept if pair[0].lower() not in named or pair[0].lower() == b"content-length"]
    if bodiless or status in (204, 304):
        framing = Framing.NONE
    elif chunked:
        framing = Framing.CHUNKED
    else:
        framing = Framing.PLAIN if length is None else Framing.LENGTH
    return AnswerHead(status, reason, kept, framing, length or 0, readable and not encoded)
