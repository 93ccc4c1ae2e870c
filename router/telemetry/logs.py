"""What is written to standard error: events for operators and a line for each request.

Never in it: prompt text, bodies, keys, headers, query strings. How lines are cleaned and secrets masked, as a second
guard, is `router.kv.log_lines`, which the agent shares.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

from router.kv.log_lines import MAX_VALUE_CHARACTERS, ConsoleFormatter, JsonFormatter, clean, mask_secrets

__all__ = ["AccessLog", "clean", "clean_request_id", "mask_secrets", "setup"]

Format = Literal["json", "console"]

MAX_REQUEST_ID_CHARACTERS = 128
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}\Z")


def clean_request_id(value: str | None) -> str | None:
    """Return a client's request id when it is safe to log, to keep and to send on; else None."""
    return value if value is not None and _REQUEST_ID.match(value) else None


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


def _brief(value: str | int | float | bool) -> str | int | float | bool:
    if isinstance(value, str):
        short = len(value) <= MAX_VALUE_CHARACTERS
        return value if short and value.isascii() and value.isprintable() else clean(value)
    return round(value, 6) if isinstance(value, float) else value
