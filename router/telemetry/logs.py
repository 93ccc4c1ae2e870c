"""What is written to standard error: events for operators and a line for each request.

Never in it: prompt text, bodies, keys, headers, query strings. Whatever a client or an engine named is cleaned of
control characters, so a line stays one line. As a second guard, passwords in URLs and bearer tokens are masked
wherever they turn up in a message or a traceback of any library.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Format = Literal["json", "console"]

MAX_REQUEST_ID_CHARACTERS = 128
MAX_VALUE_CHARACTERS = 256
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SECRETS = (
    (re.compile(r"(://)[^/@\s]*@"), r"\1***@"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s,'\"]+"), r"\1***"),
    (re.compile(r"(?i)\b(authorization|x-api-key|api-key|cookie)(['\"]?\s*[:=]\s*).+"), r"\1\2***"),
)
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def clean(value: str, limit: int = MAX_VALUE_CHARACTERS) -> str:
    """Return the value on one line: control and direction characters become `?`, long ones are cut."""
    return _CONTROL.sub("?", value[:limit])


def clean_request_id(value: str | None) -> str | None:
    """Return a client's request id when it is safe to log, to keep and to send on; else None."""
    return value if value is not None and _REQUEST_ID.match(value) else None


def mask_secrets(text: str) -> str:
    """Return the text without passwords in URLs, bearer tokens and key headers."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, logger, message, then the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_secrets(record.getMessage()),
        }
        entry.update((key, _plain(value)) for key, value in _extra(record).items())
        if record.exc_info:
            entry["traceback"] = mask_secrets(self.formatException(record.exc_info))
        return json.dumps(entry)


class ConsoleFormatter(logging.Formatter):
    """A line for people: `12:00:00.000 warning feeds.redis: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows on lines of its own."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        name = record.name.removeprefix("warmroute.")
        fields = "".join(f" {key}={clean(str(_plain(value)))}" for key, value in _extra(record).items())
        message = clean(mask_secrets(record.getMessage()), 4_096)
        line = f"{at} {record.levelname.lower():7} {name}: {message}{fields}"
        if record.exc_info:
            line += "\n" + mask_secrets(self.formatException(record.exc_info))
        return line


def setup(level: str = "info", log_format: Format = "console", stream: TextIO | None = None) -> None:
    """Send the router's log at `level`, and warnings of libraries, to `stream` (standard error).

    Calling it again replaces what an earlier call set up.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, "is_warmroute", False)]:
        root.removeHandler(old)
    handler.is_warmroute = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("warmroute").setLevel(level.upper())


class AccessLog:
    """A line for each request, with its decision in brief. Written directly: it is on the path of every request.

    Args:
        stream: Where to.
        log_format: `json` or `console`.
        enabled: `log.access`; without it nothing is written.
    """

    def __init__(self, stream: TextIO | None = None, log_format: Format = "console", *, enabled: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._json = log_format == "json"
        self.enabled = enabled

    def write(self, fields: Mapping[str, str | int | float | bool | None]) -> None:
        """Write one line; fields that are None are left out. Strings are cleaned here."""
        if not self.enabled:
            return
        kept = {key: _brief(value) for key, value in fields.items() if value is not None}
        now_s = time.time()
        if self._json:
            at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"at": at, "level": "info", "logger": "warmroute.access", **kept})
        else:
            clock = time.strftime("%H:%M:%S", time.localtime(now_s))
            words = " ".join(f"{key}={value}" for key, value in kept.items())
            line = f"{clock}.{int(now_s % 1 * 1000):03d} info    access: {words}"
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # A closed or full standard error must not fail a request that was served.
            self.enabled = False


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


def _brief(value: str | int | float | bool) -> str | int | float | bool:
    if isinstance(value, str):
        short = len(value) <= MAX_VALUE_CHARACTERS
        return value if short and value.isascii() and value.isprintable() else clean(value)
    return round(value, 6) if isinstance(value, float) else value


def _plain(value: object) -> str | int | float | bool:
    if isinstance(value, str):
        return clean(mask_secrets(value))
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    return clean(mask_secrets(str(value)))
