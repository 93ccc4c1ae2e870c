"""Lines of a log, for router and agent: on one line whatever others named, and without secrets.

Whatever a client or an engine named is cleaned of control characters, so a line stays one line. Passwords in URLs,
bearer tokens and keys are masked wherever they turn up, also in a message or a traceback of any library. Rather too
much is masked than too little: a password may hold any character.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

MAX_VALUE_CHARACTERS = 256
MAX_MESSAGE_CHARACTERS = 4_096
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SECRETS = (
    (re.compile(r"(?i)\b(\w*(?:pass(?:word|wd)?|pwd|secret|token|api[-_]?key))(['\"]?\s*=\s*)[^\s&]+"), r"\1\2***"),
    # Up to the last '@' of the word: a password that was not percent-encoded may hold '@', '/' and '?'.
    (re.compile(r"(://)\S*@"), r"\1***@"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s,'\"]+"), r"\1***"),
    (re.compile(r"(?i)\b(authorization|x-api-key|api-key|cookie)(['\"]?\s*[:=]\s*).+"), r"\1\2***"),
)
MIN_SECRET_CHARACTERS = 8
MAX_SECRETS = 1_000
_concealed: dict[str, None] = {}
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def clean(value: str, limit: int = MAX_VALUE_CHARACTERS) -> str:
    """Return the value on one line: control and direction characters become `?`, long ones are cut."""
    return _CONTROL.sub("?", value[:limit])


def conceal(*secrets: str | None) -> None:
    """Have these texts masked from now on, wherever they turn up: a server may echo what it was sent.

    For the whole process, as logging is. Short ones are left out: masking them would spoil every line.
    """
    new = [secret for secret in secrets if secret and len(secret) >= MIN_SECRET_CHARACTERS]
    if len(_concealed) > MAX_SECRETS:
        _concealed.clear()  # a file whose secret changed thousands of times
    _concealed.update(dict.fromkeys(new))


def mask_secrets(text: str) -> str:
    """Return the text without secrets that are known, passwords in URLs and options, bearer tokens and key headers."""
    for secret in _concealed:
        if secret in text:
            text = text.replace(secret, "***")
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
        name = record.name.removeprefix("warmroute.").removeprefix("replica.")
        fields = "".join(f" {key}={clean(str(_plain(value)))}" for key, value in _extra(record).items())
        message = clean(mask_secrets(record.getMessage()), MAX_MESSAGE_CHARACTERS)
        line = f"{at} {record.levelname.lower():7} {name}: {message}{fields}"
        if record.exc_info:
            line += "\n" + mask_secrets(self.formatException(record.exc_info))
        return line


def direct(log_format: str, stream: TextIO | None = None) -> None:
    """Send our log lines, and warnings of libraries, to `stream` (standard error).

    Calling it again replaces what an earlier call set up.

    Args:
        log_format: `json` or `console`.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, "is_warmroute", False)]:
        root.removeHandler(old)
    handler.is_warmroute = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


def _plain(value: object) -> str | int | float | bool:
    if isinstance(value, str):
        return clean(mask_secrets(value))
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    return clean(mask_secrets(str(value)))
