"""Errors in vLLM's shape: `{"error": {message, type, param, code}}`.

There are two families, told apart by `type`: "Bad Request" is what the body's schema refuses (a report with one line a
problem), "BadRequestError" what is refused after it was read.
"""

from __future__ import annotations

import orjson


class Refusal(Exception):  # noqa: N818 - the engine refuses; nothing went wrong in it
    """An answer that is an error.

    Attributes:
        status: HTTP status.
        body: The JSON to send.
    """

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def bad_value(message: str, param: str, value: object = None) -> Refusal:
    """Return the refusal of a field that was understood and can't be used."""
    about = f"parameter={param}" + ("" if value is None else f", value={value}")
    return Refusal(f"{message} ({about})", param=param)


def bad_schema(kind: str, where: str, message: str, value: object, **more: object) -> Refusal:
    """Return the refusal of a field of the wrong type, one line."""
    return bad_schemas([line(kind, where, message, value, **more)], where)


def bad_schemas(lines: list[str], param: str | None) -> Refusal:
    """Return the refusal of a field that fits none of several types, a line each."""
    label = "error" if len(lines) == 1 else "errors"
    report = f"{len(lines)} validation {label}:\n" + "\n".join(f"  {each}" for each in lines)
    return Refusal(report, kind="Bad Request", param=param)


def line(kind: str, where: str, message: str, value: object, **more: object) -> str:
    """Return one problem of a report."""
    return str({"type": kind, "loc": where, "msg": message, "input": _shown(value), **more})


def unknown_model(name: object, served: list[str]) -> Refusal:
    """Return the 404 for a model that this engine does not serve."""
    message = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
    return Refusal(message, status=404, kind="NotFoundError", param="model")


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value if len(value) <= 200 else value[:200] + "...[truncated]"
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)[:200]
