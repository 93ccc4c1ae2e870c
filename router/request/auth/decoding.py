"""gzip bodies of isolated tenants: decoded, since a salt has to be written into them; under caps, since a few bytes
may hold gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from router.errors import BodyTooLargeError, MalformedRequestError, UnsupportedEncodingError

PIECE_BYTES = 256 * 1_024
"""Decoded at a time, so that a cap stops the work soon."""
RATIO_FREE_BYTES = 64 * 1_024
"""Up to this size a body may grow by any ratio: a short text of spaces is no attack."""
MAX_MEMBERS = 1_000
_GZIP = 16 + zlib.MAX_WBITS
CODINGS = (b"gzip", b"x-gzip")


def coding_of(values: list[bytes]) -> bool:
    """Tell from all values of Content-Encoding whether a body is in gzip; False: it is plain.

    Raises:
        UnsupportedEncodingError: It is in another coding, or in several.
    """
    codings = [part.strip().lower() for value in values for part in value.split(b",")]
    codings = [coding for coding in codings if coding not in (b"", b"identity")]
    if not codings:
        return False
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise UnsupportedEncodingError("send the body plain or in gzip: other codings can't be isolated")
    return True


def gunzipped(body: bytes, limit_bytes: int, max_ratio: int, pause: Callable[[], None] | None = None) -> bytes:
    """Return a gzip body decoded; it may have several members.

    Args:
        limit_bytes: Longest decoded body.
        max_ratio: Decoded over encoded bytes, once over `RATIO_FREE_BYTES`.
        pause: Called between pieces.

    Raises:
        BodyTooLargeError: It is over a cap.
        MalformedRequestError: It is no gzip, is cut off, or has something after its end.
    """
    limit_bytes = min(limit_bytes, max(RATIO_FREE_BYTES, max_ratio * len(body)))
    pieces: list[bytes] = []
    size_bytes = 0
    rest = body
    members = 0
    while rest:
        members += 1
        if members > MAX_MEMBERS:
            raise MalformedRequestError("the gzip body has too many members")
        decoder, ended = zlib.decompressobj(_GZIP), False
        while not ended:
            try:
                piece = decoder.decompress(rest, min(PIECE_BYTES, limit_bytes - size_bytes + 1))
            except zlib.error:
                raise MalformedRequestError("the body is not valid gzip") from None
            ended = decoder.eof
            rest = decoder.unused_data if ended else decoder.unconsumed_tail
            size_bytes += len(piece)
            if size_bytes > limit_bytes:
                raise BodyTooLargeError(f"the decoded body is over {limit_bytes} bytes (`limits`, `isolation`)")
            if not piece and not rest and not ended:
                raise MalformedRequestError("the gzip body is cut off")
            pieces.append(piece)
            if pause is not None:
                pause()
    return b"".join(pieces)
