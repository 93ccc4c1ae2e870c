"""Spellings of addresses, and which are allowed."""

from __future__ import annotations

import pytest

from router.kv.addresses import AllowedAddresses, check_allow, check_engine_url, normalised_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:9001/", "http://127.0.0.1:9001"),
        ("127.0.0.1:9001", "http://127.0.0.1:9001"),
        ("localhost:9001", "http://127.0.0.1:9001"),
        ("HTTP://127.0.0.1:9001", "http://127.0.0.1:9001"),
        ("http://Pod-0.Engines.svc.:8000", "http://pod-0.engines.svc:8000"),
        ("http://engine", "http://engine:80"),
        ("HTTPS://Engine", "https://engine:443"),
        ("https://localhost:9001/", "https://localhost:9001"),
        ("[0:0:0:0:0:0:0:1]:9001", "http://[::1]:9001"),
    ],
)
def test_every_spelling_is_one_address(text, url):
    """Case, scheme, slash, default port and IPv6 forms make no difference."""
    assert normalised_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        *(
            "https://e:1/v1",
            "http://e/v1",
            "http://u:p@e",
            "http://e?x=1",
            "",
            "http://:1",
            "http://e:99999",
            "ftp://e",
        ),
        *("http://e:0", "http://e#f", f"http://{'a' * 64}.svc", "http://a..svc", "http://-a", "http://é:1"),
        "http://" + ".".join(["a" * 60] * 5),
    ],
)
def test_what_is_no_plain_http_address_is_refused(text):
    """Paths, credentials, other schemes, broken ports and names that none can look up are no address of an engine."""
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


@pytest.mark.parametrize("entry", ["10.0.0.0/8", "::1", "fd00::/8", "*.engines.svc", "pod-[0-9].x", "10.0.0.1/8"])
def test_an_entry_of_the_allow_list_is_a_cidr_or_a_pattern(entry):
    """Both forms have no problem."""
    assert check_allow(entry) is None


@pytest.mark.parametrize("entry", ["", "10.0.0.0/33", "http://h", "h:8000", "a b", "10.0.0.0/8,10.1.0.0/16", "é"])
def test_any_other_entry_has_a_problem_that_names_it(entry):
    """It would match nothing for ever, so the configuration is to refuse it."""
    assert repr(entry) in check_allow(entry)


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "http://pod-0.svc", "HTTP://[::1]:1/", "https://pod-0.svc"])
def test_an_advertised_address_may_be_plain_http(url):
    """Host and port, nothing more."""
    assert check_engine_url(url) is None


@pytest.mark.parametrize(
    "url", ["https://h:1/v1", "http://h:1/v1", "h:1", "", "http://", "http://u:p@h", "http://h:99999"]
)
def test_an_address_that_routers_refuse_is_told_with_the_remedy(url):
    """What every router would refuse has a problem at the agent already."""
    assert "http://HOST:PORT" in check_engine_url(url)
