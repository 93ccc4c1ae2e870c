"""Which headers cross the router, and which it sets (RFC 9110, section 7.6.1).

Everything else crosses as it came: spelling, order, repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus

from router.proxy.exchange import Headers, Request
from router.proxy.head_pattern import whole_request
from router.telemetry.tracing import TRACEPARENT

_CONNECTION_ONLY = frozenset(
    (
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# Framing and identity are the router's: Host is the replica's, the body has a Content-Length, 100-continue was
# answered. A client must not choose a rank: the router knows which rank holds what.
_NOT_TO_ENGINE = _CONNECTION_ONLY | {
    b"content-length",
    b"expect",
    b"host",
    b"x-data-parallel-rank",
    b"x-request-id",
    b"x-warmroute-explain",
    b"x-warmroute-policy",
}
NOT_TO_CLIENT = _CONNECTION_ONLY | {
    b"x-request-id",
    b"x-warmroute-explain",
    b"x-warmroute-matched-tokens",
    b"x-warmroute-replica",
}
"""Headers of an engine's that go no further (those that Connection names come on top)."""
MAX_RANK_DIGITS = 5
_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))


def engine_head(request: Request, authority: bytes, rank: int | None) -> bytes:
    """Return the head of the request as it goes to an engine.

    Args:
        authority: The replica's HOST:PORT.
        rank: The data-parallel rank chosen; None where the replica has one only.
    """
    lines = request.crossing
    if request.trace is not None:
        lines = crossing_lines(request.headers, request.dropped | {TRACEPARENT})
        lines += b"%b: %b\r\n" % (TRACEPARENT, request.trace.header)
    elif lines is None:
        lines = crossing_lines(request.headers, request.dropped)
    head = b"%b %b%b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\n" % (
        request.method.encode("ascii"),
        request.path.encode("ascii"),
        request.query,
        authority,
        lines,
        request.request_id.encode("ascii"),
    )
    if request.rank is not None:
        rank = request.rank
    if rank is not None:
        head += b"x-data-parallel-rank: %d\r\n" % rank
    if request.framed or request.method in _WITH_BODY:
        return b"%bcontent-length: %d\r\n\r\n" % (head, len(request.body))
    return head + b"\r\n"


def engine_request(request: Request, authority: bytes) -> bytes | None:
    """Return a whole request as it goes to an engine that has no ranks; None where its head is not known already."""
    begin, lines = request.begin, request.crossing
    if begin is None or lines is None or request.trace is not None or request.rank is not None:
        return None
    return whole_request(begin, authority, lines, request.request_id, request.body)


def status_line(status: int, reason: bytes) -> bytes:
    """Return the first line of an answer; its reason phrase is the usual one where the engine gave none."""
    return b"HTTP/1.1 %d %b\r\n" % (status, reason or _REASONS.get(status, b""))


def client_rank(request: Request) -> int | None:
    """Return the rank that a client asks for; None when it asks for none, or not for one."""
    asked = [value for name, value in request.headers if name.lower() == b"x-data-parallel-rank"]
    return int(asked[0]) if len(asked) == 1 and asked[0].isdigit() and len(asked[0]) <= MAX_RANK_DIGITS else None


def crossing_lines(headers: Headers, dropped: frozenset[bytes]) -> bytes:
    """Return a request's header lines that go to an engine, as they came.

    Args:
        dropped: Lower-case names that Connection declares to be for the client's connection alone.
    """
    parts: list[bytes] = []
    for name, value in headers:
        lower = name.lower()
        if lower not in _NOT_TO_ENGINE and lower not in dropped:
            parts += (name, b": ", value, b"\r\n")
    return b"".join(parts)


def joined(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return header pairs as the lines that are sent."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


@lru_cache(maxsize=4_096)
def authority_of(url: str) -> bytes:
    """Return the HOST:PORT of a replica's URL."""
    return url.partition("//")[2].encode("ascii", "replace")


def safe_value(text: str) -> bytes:
    """Return a text as a header value: what is not printable ASCII is escaped, so that it can't end the line."""
    return text.encode("ascii", "backslashreplace").translate(_PRINTABLE)


@lru_cache(maxsize=4_096)
def safe_name(name: str) -> bytes:
    """Return a replica's name as `safe_value` does; it is asked for with each answer."""
    return safe_value(name)


_PRINTABLE = bytes(byte if 0x20 <= byte < 0x7F else ord("?") for byte in range(256))
