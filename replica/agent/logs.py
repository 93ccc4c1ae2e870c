"""Structured log lines on stderr. Never a prompt, a token id, a key or a password."""

from __future__ import annotations

import json
import logging
import sys
import time

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _stamp(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update(_extra(record))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        line = f"{_stamp(record)} {record.levelname:<7} {record.getMessage()}{extra}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def setup(log_format: str, level: str) -> None:
    """Send the agent's log lines to stderr.

    Args:
        log_format: `json` or `console`.
        level: `debug`, `info`, `warning` or `error`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _ConsoleFormatter())
    logger = logging.getLogger("replica.agent")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


def _stamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN}
