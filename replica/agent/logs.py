"""Where the agent's log lines go. How they look, cleaned and without secrets, is `router.kv.log_lines`."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from router.kv.log_lines import ConsoleFormatter, JsonFormatter


def setup(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Send the agent's log lines at `level`, and warnings of libraries, to `stream` (standard error).

    Args:
        log_format: `json` or `console`.
        level: `debug`, `info`, `warning` or `error`.
        stream: Where to.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, "is_warmroute", False)]:
        root.removeHandler(old)
    handler.is_warmroute = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("replica.agent").setLevel(level.upper())
