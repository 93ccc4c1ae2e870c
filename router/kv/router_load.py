"""What one router has in flight at a lane's units, as the other routers read it in Redis.

The bytes are MessagePack `[version, router, [[unit, requests, tokens], ...]]`, an entry of the lane's load stream. Each
entry tells all that the router has there: units it does not name have nothing. They are not signed: what is forged here
makes placement worse, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

VERSION = 1
MAX_BYTES = 256 * 1024
MAX_ROWS = 4_096
"""Units in one entry; more are not told of."""
MAX_ENTRIES = 1_024
"""About so many entries of a lane are kept: only each router's last one is of use."""
KEEP_S = 60
"""A lane's load stream is gone after this when no router writes any."""
_MAX_NAME = 256
_MAX_REQUESTS = 1_000_000
_MAX_TOKENS = 1e12

Row = tuple[str, int, float]
"""Unit; requests that have not ended; of their prompts, uncached tokens that are not computed."""


@dataclass(frozen=True, slots=True)
class RouterLoad:
    """One entry.

    Attributes:
        router: A name that no other process has.
        rows: Units at which it has something.
    """

    router: str
    rows: tuple[Row, ...]


def encode(router: str, rows: Iterable[Row]) -> bytes:
    """Return the bytes of an entry."""
    return msgspec.msgpack.encode([VERSION, router, list(rows)[:MAX_ROWS]])


def decode(data: bytes) -> RouterLoad | None:
    """Return the entry, or None where the bytes are none of a version that can be read."""
    if len(data) > MAX_BYTES:
        return None
    try:
        version, router, rows = msgspec.msgpack.decode(data)[:3]
        found = tuple((unit, requests, tokens) for unit, requests, tokens in (row[:3] for row in rows[:MAX_ROWS]))
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if type(version) is not int or abs(version - VERSION) > 1 or not _is_name(router):
        return None
    return (
        RouterLoad(router, tuple((row[0], row[1], float(row[2])) for row in found)) if all(map(_fits, found)) else None
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME


def _fits(row: tuple[object, object, object]) -> bool:
    unit, requests, tokens = row
    if not _is_name(unit) or type(requests) is not int or type(tokens) not in (int, float):
        return False
    return 0 <= requests <= _MAX_REQUESTS and math.isfinite(tokens) and 0 <= tokens <= _MAX_TOKENS  # type: ignore[arg-type,operator]
