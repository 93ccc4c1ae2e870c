"""Fields of a body by type, with the leniency and the refusals of the engine's schema."""

from __future__ import annotations

from typing import Any

from replica.simengine.refusals import bad_schema


def integer(body: dict[str, Any], name: str) -> int | None:
    """Return an integer field, also where it is spelled as a string or a whole float."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        what = "Input should be a valid integer, got a number with a fractional part"
        raise bad_schema("int_from_float", f"body.{name}", what, value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            what = "Input should be a valid integer, unable to parse string as an integer"
            raise bad_schema("int_parsing", f"body.{name}", what, value) from None
    raise bad_schema("int_type", f"body.{name}", "Input should be a valid integer", value)


def number(body: dict[str, Any], name: str, default: float) -> float:
    """Return a number field, also where it is spelled as a string."""
    value = body.get(name)
    if value is None:
        return default
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        kind = "float_parsing" if isinstance(value, str) else "float_type"
        what = "Input should be a valid number"
        if isinstance(value, str):
            what += ", unable to parse string as a number"
        raise bad_schema(kind, f"body.{name}", what, value) from None


_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


def boolean(body: dict[str, Any], name: str) -> bool:
    """Return a boolean field; absent is False. The words that count as one are the engine's."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    spelled = str(value).lower()
    if isinstance(value, (str, int)) and spelled in _TRUE + _FALSE:
        return spelled in _TRUE
    what = "Input should be a valid boolean, unable to interpret input"
    raise bad_schema("bool_parsing", f"body.{name}", what, value)
