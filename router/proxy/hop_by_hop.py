"""Which headers cross the router, and which it sets (RFC 9110, section 7.6.1).

Everything else crosses as it came: spelling, order, repeats.
"""

from __future__ import annotations

from router.proxy.exchange import Request

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
}
NOT_TO_CLIENT = _CONNECTION_ONLY | {
    b"x-request-id",
    b"x-warmroute-explain",
    b"x-warmroute-matched-tokens",
    b"x-warmroute-replica",
}
"""Headers of an engine's that go no further (those that Connection names come on top)."""
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))


def engine_head(request: Request, authority: bytes, rank: int | None) -> bytes:
    """Return the head of the request as it goes to an engine.

    Args:
        authority: The replica's HOST:PORT.
        rank: The data-parallel rank chosen; None where the replica has one only.
    """
    parts = [
        request.method.encode("ascii"),
        b" ",
        request.path.encode("ascii"),
        request.query,
        b" HTTP/1.1\r\nhost: ",
        authority,
        b"\r\n",
    ]
    dropped = request.dropped
    for name, value in request.headers:
        lower = name.lower()
        if lower not in _NOT_TO_ENGINE and lower not in dropped:
            parts += (name, b": ", value, b"\r\n")
    parts += (b"x-request-id: ", request.request_id.encode("ascii"), b"\r\n")
    if rank is not None:
        parts.append(b"x-data-parallel-rank: %d\r\n" % rank)
    if request.framed or request.method in _WITH_BODY:
        parts.append(b"content-length: %d\r\n" % len(request.body))
    parts.append(b"\r\n")
    return b"".join(parts)


def safe_value(text: str) -> bytes:
    """Return a text as a header value: what is not printable ASCII is escaped, so that it can't end the line."""
    return text.encode("ascii", "backslashreplace").translate(_PRINTABLE)


_PRINTABLE = bytes(byte if 0x20 <= byte < 0x7F else ord("?") for byte in range(256))
