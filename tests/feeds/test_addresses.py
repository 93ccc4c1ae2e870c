"""Spellings of addresses, and which are allowed."""

from __future__ import annotations

import pytest

from router.feeds.addresses import AllowedAddresses, normalised_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:9001/", "http://127.0.0.1:9001"),
        ("127.0.0.1:9001", "http://127.0.0.1:9001"),
        ("localhost:9001", "http://127.0.0.1:9001"),
        ("HTTP://127.0.0.1:9001", "http://127.0.0.1:9001"),
        ("http://Pod-0.Engines.svc.:8000", "http://pod-0.engines.svc:8000"),
        ("http://engine", "http://engine:80"),
        ("[0:0:0:0:0:0:0:1]:9001", "http://[::1]:9001"),
    ],
)
def test_every_spelling_is_one_address(text, url):
    """RED-05: case, scheme, slash, default port and IPv6 forms make no difference."""
    assert normalised_url(text) == url


@pytest.mark.parametrize(
    "text", ["https://e:1", "http://e/v1", "http://u:p@e", "http://e?x=1", "", "http://:1", "http://e:99999", "ftp://e"]
)
def test_what_is_no_plain_http_address_is_refused(text):
    """Paths, credentials, other schemes and broken ports are no address of an engine."""
    with pytest.raises(ValueError):
        normalised_url(text)


@pytest.mark.parametrize(
    ("allow", "url", "allowed"),
    [
        ((), "http://203.0.113.1:80", True),
        (("10.0.0.0/8",), "http://10.9.9.9:1", True),
        (("10.0.0.0/8",), "http://11.0.0.1:1", False),
        (("10.0.0.0/8",), "http://inside.example:1", False),
        (("fd00::/8",), "http://[fd00::1]:1", True),
        (("127.0.0.1",), "http://127.0.0.1:1", True),
        (("*.engines.svc",), "http://a.engines.svc:1", True),
        (("*.engines.svc",), "http://engines.svc.evil.example:1", False),
        (("*",), "http://169.254.169.254:80", False),
    ],
)
def test_addresses_match_cidrs_and_names_match_patterns(allow, url, allowed):
    """A pattern is for names alone: no pattern of text lets an address in."""
    assert AllowedAddresses(allow).allows(url) is allowed


def test_an_entry_that_is_neither_is_an_error():
    """A CIDR with a typing error must not become a pattern that matches nothing."""
    with pytest.raises(ValueError, match="neither"):
        AllowedAddresses(("10.0.0.0/99",))
