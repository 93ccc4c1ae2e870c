"""The agent's log lines: one line each, and no secret in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from replica.agent.logs import setup


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; what was set up before is put back."""
    root, own = logging.getLogger(), logging.getLogger("replica.agent")
    before = (list(root.handlers), root.level, own.level)
    yield io.StringIO()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_secret_and_no_forged_line_is_logged(stream: io.StringIO, log_format: str) -> None:
    """Passwords are masked in messages, fields and other libraries' lines; line ends in them begin no new line."""
    setup(log_format, "info", stream)
    log = logging.getLogger("replica.agent.sink")
    log.error("redis://u:RP-333@h:1/0 fails", extra={"error": "NOAUTH for redis://h?password=RP-333\nforged"})
    logging.getLogger("somelib").warning("Bearer RP-333")
    lines = stream.getvalue().splitlines()
    assert (len(lines), "RP-333" in stream.getvalue()) == (2, False)


def test_json_lines_hold_their_fields(stream: io.StringIO) -> None:
    """A machine finds level, message and fields by name; levels below the one set are left out."""
    setup("json", "info", stream)
    log = logging.getLogger("replica.agent.sink")
    log.debug("no")
    log.info("epoch began", extra={"unit": "r0/0", "epoch": 7})
    entry = json.loads(stream.getvalue())
    assert (entry["level"], entry["message"], entry["unit"], entry["epoch"]) == ("info", "epoch began", "r0/0", 7)
