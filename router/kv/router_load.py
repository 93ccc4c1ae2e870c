"""What one router has in flight at a lane's units, as the other routers read it in Redis.

The bytes are MessagePack `[version, router, [[unit, requests, tokens, head_age_s, computed_tokens], ...]]`, an entry of
the lane's load stream. Each entry tells all that the router has there: units it does not name have nothing. They are
not signed: what is forged here makes placement worse, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

VERSION = 1
MAX_BYTES = 512 * 1024
MAX_ROWS = 4_096
"""Units in one entry; more are not told of."""
MAX_ENTRIES = 1_024
"""About so many entries of a lane are kept: only each router's last one is of use."""
KEEP_S = 60
"""A lane's load stream is gone after this when no router writes any."""
NO_HEAD = -1.0

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Tokens = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Row(msgspec.Struct, array_like=True, frozen=True):
    """A unit where a router has something.

    Attributes:
        requests: That have not ended.
        tokens: Uncached tokens of their prompts that are not computed.
        head_age_s: For how long the oldest prompt without a first token has been there; negative for none.
        computed_tokens: Uncached prompt tokens that it had computed there, ever: it only grows.
    """

    unit: _Name
    requests: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    tokens: _Tokens
    head_age_s: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = NO_HEAD
    computed_tokens: _Tokens = 0.0


class RouterLoad(msgspec.Struct, array_like=True, frozen=True):
    """One entry.

    Attributes:
        router: A name that no other process has.
        rows: Units at which it has something.
    """

    version: int
    router: _Name
    rows: list[Row]


_DECODER = msgspec.msgpack.Decoder(RouterLoad)


def encode(router: str, rows: Sequence[Row]) -> bytes:
    """Return the bytes of an entry."""
    return msgspec.msgpack.encode(RouterLoad(VERSION, router, list(rows[:MAX_ROWS])))


def decode(data: bytes) -> RouterLoad | None:
    """Return the entry, or None where the bytes are none of a version that can be read."""
    if len(data) > MAX_BYTES:
        return None
    try:
        load = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    is_finite = all(math.isfinite(row.tokens + row.head_age_s + row.computed_tokens) for row in load.rows)
    return load if is_finite and abs(load.version - VERSION) <= 1 and len(load.rows) <= MAX_ROWS else None
