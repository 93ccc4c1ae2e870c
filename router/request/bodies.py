"""Request bodies as the engine reads them: JSON bytes to a dict, and fields with the engine's leniency.

The engine parses with Python's `json` and checks with pydantic in lax mode. Whatever it would refuse is not an error
here: the request is forwarded and the engine answers it.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

import orjson

from router.request.reasons import NotUnderstoodError, Reason

_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # UTF-32's begin with those of UTF-16
_NUMBER_DIGITS = 20  # a longer text is no number that any field takes


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    Of equal keys the last one holds, also when one is spelled with escapes. UTF-8 with a byte order mark, UTF-16 and
    UTF-32 are read too, and so are NaN and Infinity.

    Raises:
        NotUnderstoodError: BAD_JSON when it is no JSON, or JSON but no object.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = _parse_as_python_does(body)
    if not isinstance(value, dict):
        raise NotUnderstoodError(Reason.BAD_JSON)
    return value


def _parse_as_python_does(body: bytes) -> object:
    """Parse what orjson refuses and Python's json does not, if it looks like an object at all (audio does not)."""
    start = body[:64].lstrip()
    if not start.startswith((b"{", *_MARKS)) and b"\0" not in body[:4]:
        raise NotUnderstoodError(Reason.BAD_JSON)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise NotUnderstoodError(Reason.BAD_JSON) from None


def flag(value: object, default: bool) -> bool:
    """Return a boolean field as pydantic's lax mode takes it (`"true"`, `1`, ...); `default` for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.lower()
        return True if word in _TRUE else False if word in _FALSE else default
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    return default


def integer(value: object) -> int | None:
    """Return an integer field as pydantic's lax mode takes it (`16`, `16.0`, `"16"`); None for anything else."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= _NUMBER_DIGITS:
        try:
            return int(value)
        except ValueError:
            return None
    return None


def text(value: object) -> str | None:
    """Return a text field; None for anything else."""
    return value if isinstance(value, str) else None


def token_ids(value: list[Any]) -> list[int] | None:
    """Return a list of token ids (0 to 2^63 - 1) if it is one, else None."""
    if all(type(item) is int for item in value) and (not value or (min(value) >= 0 and max(value) < 1 << 63)):
        return value
    return None
