"""What is written to standard error: events for operators. `router.telemetry.access_log` adds a line for each request.

Never in it: prompt text, bodies, keys, headers, query strings. How lines are cleaned and secrets masked, as a second
guard, is `router.kv.log_lines`, which the agent shares.
"""

from __future__ import annotations

import logging
import re
from typing import TextIO

from router.kv.log_lines import clean, direct, mask_secrets
from router.telemetry.access_log import Format

__all__ = ["clean", "clean_request_id", "mask_secrets", "setup"]

MAX_REQUEST_ID_CHARACTERS = 128
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}\Z")


def clean_request_id(value: str | None) -> str | None:
    """Return a client's request id when it is safe to log, to keep and to send on; else None."""
    return value if value is not None and _REQUEST_ID.match(value) else None


def setup(level: str = "info", log_format: Format = "console", stream: TextIO | None = None) -> None:
    """Send the router's log at `level`, and warnings of libraries, to `stream` (standard error).

    Calling it again replaces what an earlier call set up.
    """
    direct(log_format, stream)
    set_level(level)


def set_level(level: str) -> None:
    """Write what is at least this severe: `debug`, `info`, `warning` or `error`."""
    logging.getLogger("warmroute").setLevel(level.upper())
