"""Logs: one line an event, and no secret in any of them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from router.kv.log_lines import conceal, mask_secrets
from router.telemetry.logs import clean_request_id, setup


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; what was set up before is put back."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("warmroute").level)
    yield io.StringIO()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.getLogger("warmroute").setLevel(before[2])


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_marker_of_a_secret_is_logged(stream, log_format):
    """Redis passwords, bearer tokens and key headers are masked in messages, fields and tracebacks of any library."""
    setup("debug", log_format, stream)
    try:
        raise ConnectionError("can't reach redis://user:RP-333@host:6379/0")
    except ConnectionError:
        logging.getLogger("warmroute.feeds").exception("failed with Authorization: Bearer CK-111")
    logging.getLogger("somelib").warning("headers: {'x-api-key': 'XK-555', 'cookie': 'c=UK-222'}")
    logging.getLogger("warmroute").info("told", extra={"url": "redis://:RP-333@host", "key": "Bearer CK-111"})
    text = stream.getvalue()
    assert "failed with" in text
    assert [marker for marker in ("RP-333", "CK-111", "XK-555", "UK-222") if marker in text] == []


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_message_cannot_forge_a_line(stream, log_format):
    """Line ends and control codes in what others named do not begin a new line."""
    setup("info", log_format, stream)
    logging.getLogger("warmroute").info("lease refused: %s", "a\nforged", extra={"unit": "x\r\n\x1b[2Jforged"})
    assert len(stream.getvalue().splitlines()) == 1


def test_json_lines_hold_level_logger_message_and_fields(stream):
    """A machine finds the fields by name; levels below the one set are left out, as are libraries' infos."""
    setup("info", "json", stream)
    logging.getLogger("warmroute.feeds").debug("no")
    logging.getLogger("aiohttp").info("no")
    logging.getLogger("warmroute.feeds").warning("lost %s", "it", extra={"replica": "r0"})
    entry = json.loads(stream.getvalue())
    assert (entry["level"], entry["logger"], entry["message"], entry["replica"]) == (
        "warning",
        "warmroute.feeds",
        "lost it",
        "r0",
    )


@pytest.mark.parametrize("value", ["abc-123", "a" * 128, "ID:1.2_3"])
def test_plain_request_ids_are_kept(value):
    """An id that is safe everywhere goes on as it is."""
    assert clean_request_id(value) == value


@pytest.mark.parametrize("value", [None, "", "a" * 129, "a b", "a\r\nb", "\x1b[31m", "naïve", "a\n"])
def test_other_request_ids_are_replaced(value):
    """Anything else is not taken over: the router gives its own."""
    assert clean_request_id(value) is None


def test_a_secret_that_is_known_is_masked_wherever_it_stands() -> None:
    """Also where no pattern would find it: in a server's own words."""
    conceal("RP-333-known", None, "", "abc")
    said = mask_secrets("ERR unknown command 'AUTH', with args beginning with: 'RP-333-known' abc")
    assert said == "ERR unknown command 'AUTH', with args beginning with: '***' abc"
