"""Where the agent's log lines go. How they look, cleaned and without secrets, is `router.kv.log_lines`."""

from __future__ import annotations

import logging
from typing import TextIO

from router.kv.log_lines import direct


def setup(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Send the agent's log lines at `level`, and warnings of libraries, to `stream` (standard error).

    Args:
        log_format: `json` or `console`.
        level: `debug`, `info`, `warning` or `error`.
        stream: Where to.
    """
    direct(log_format, stream)
    logging.getLogger("replica.agent").setLevel(level.upper())
