"""Secrets are masked wherever they turn up, and ordinary text is left alone."""

from __future__ import annotations

import pytest

from router.kv.log_lines import mask_secrets


@pytest.mark.parametrize(
    "text",
    [
        "can't reach redis://user:RP-333@host:6379/0",
        "redis://:RP@RP-333@host:6379/0",
        "redis://:RP/RP-333@host:6379/0",
        "redis://:RP?RP-333#x@host:6379/0",
        "redis://host:6379/0?password=RP-333",
        "redis://host:6379/0?db=1&Password=RP-333&protocol=3",
        "Connection(host='h', password='RP-333')",
        "unix:///run/s.sock?password=RP@RP-333",
        "Authorization: Bearer RP-333",
        "{'x-api-key': 'RP-333'}",
    ],
)
def test_a_secret_is_masked_in_every_form(text):
    """A password in a URL (also one with '@', '/' or '?'), in its query, as an argument; tokens and key headers."""
    assert "RP-333" not in mask_secrets(text)


def test_what_is_no_secret_of_a_url_stays():
    """Host, port, database and the other options are what an operator looks for."""
    assert mask_secrets("redis://u:p@h:6379/2?password=x&protocol=3") == "redis://***@h:6379/2?password=***&protocol=3"


def test_ordinary_text_is_left_alone():
    """Addresses without credentials, counts and plain words are not touched."""
    text = "replica http://10.0.0.1:8000 at user@example is back, max_tokens=5 tokens=7 key=r0"
    assert mask_secrets(text) == text
