"""URLs of a Redis are checked before anything connects."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv.client.client import RedisClient
from router.kv.log_lines import mask_secrets
from router.kv.redis_url import OPTIONS, Login, Tls, check_redis_url, missing_files, parse_redis_url

DOCUMENT = Path(__file__).parents[2] / "docs" / "redis.md"


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h:6379/0",
        "REDIS://h",
        "rediss://user:p%40ss@[::1]:6380/15?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required",
        "redis://h/?db=3&password=x&protocol=3",
        "unix:///run/valkey.sock?db=1",
        "unix://user:x@/run/valkey.sock",
        "redis+sentinel://a,b:26380,[::1]/mine",
        "redis+sentinel://u:p@a/mine/3?sentinel_username=s&sentinel_password=t",
        "rediss+sentinel://a/?service_name=mine&sentinel_ssl=no",
        "redis+cluster://u:p@a:7000,b:7001",
        "rediss+cluster://a?ssl_check_hostname=false",
    ],
)
def test_what_is_accepted_makes_a_client(url: str) -> None:
    """The client takes what the check takes."""
    assert check_redis_url(url) is None
    RedisClient(url, 1.0)


@pytest.mark.parametrize(
    "url",
    [
        "localhost",
        "localhost:6379",
        "http://h",
        "redis://",
        "redis://:6379",
        "redis://h:port",
        "redis://h:99999999/0",
        "redis://h:0",
        "redis://[::1",
        "redis://h/db",
        "redis://h/0?db=x",
        "redis://h/0?no_such_option=1",
        "redis://h/0?socket_timeout=1",
        "redis://h/0?protocol=9",
        "redis://h/0#x",
        "redis://a,b",
        "redis://h/0?db=1&db=2",
        "redis://h?ssl_ca_certs=/ca.pem",
        "rediss://h?ssl_check_hostname=perhaps",
        "rediss://h?ssl_keyfile=/own.key",
        "redis://h?password=a&password_file=/b",
        "redis://h?password_file=",
        "redis://h?sentinel_password=x",
        "unix://",
        "unix://host/path",
        "redis+sentinel://a,b",
        "redis+sentinel://a/one?service_name=other",
        "redis+sentinel://a/mine/x",
        "redis+sentinel://a,,b/mine",
        "redis+cluster://a/1",
        "redis+cluster://a?db=1",
        "redis+cluster://",
    ],
)
def test_what_is_no_redis_is_told(url: str) -> None:
    """Each has a problem in one line, which does not repeat a password."""
    for given_url in (url, url.replace("://", "://:hunter22@", 1)):
        problem = check_redis_url(given_url)
        assert problem
        assert "\n" not in problem
        assert "hunter22" not in problem


@given(st.text(max_size=40))
def test_no_text_raises_and_none_that_passes_fails_later(text: str) -> None:
    """Whatever an operator writes: a problem now, or a client."""
    heads = ("", "redis://", "redis://h/", "redis://h/0?", "redis+sentinel://", "redis+cluster://", "unix://")
    for url in (head + text for head in heads):
        if check_redis_url(url) is None:
            RedisClient(url, 1.0)


def test_sentinels_and_their_primary_have_users_of_their_own() -> None:
    """The URL's own user is the primary's; TLS holds for both unless said otherwise."""
    target = parse_redis_url(
        "rediss+sentinel://u:p@a,b:1/mine/2?sentinel_username=s&sentinel_password_file=/t&ssl_ca_certs=/ca&sentinel_ssl=no"
    )
    assert (target.kind, target.addresses, target.service, target.db) == (
        "sentinel",
        (("a", 26379), ("b", 1)),
        "mine",
        2,
    )
    assert target.login == Login("u", "p")
    assert target.sentinel_login == Login("s", None, "/t")
    assert (target.tls, target.sentinel_tls) == (Tls(ca_file="/ca"), None)
    assert target.files == (("sentinel_password_file", "/t"), ("ssl_ca_certs", "/ca"))


def test_certificates_and_names_are_checked_unless_said_otherwise() -> None:
    """rediss:// alone checks both."""
    tls = parse_redis_url("rediss://h").tls
    assert tls is not None
    assert (tls.check, tls.check_host) == ("required", True)
    assert parse_redis_url("redis://h").tls is None


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:RP-333@h/0",
        "redis://h?password=RP-333",
        "redis+sentinel://u:RP-333@a,b/mine?sentinel_password=RP-333",
        "unix://:RP-333@/run/v.sock",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    """Neither where log lines name Redis, nor where an URL is in a line by accident, nor in a representation."""
    target = parse_redis_url(url)
    assert target.holds_secret
    for text in (target.shown, mask_secrets(f"can't use {url} now"), repr(target)):
        assert "RP-333" not in text


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    """Each with its option and path."""
    (tmp_path / "ca.pem").write_text("x")
    url = f"rediss://h?ssl_ca_certs={tmp_path}/ca.pem&password_file={tmp_path}/none"
    (problem,) = missing_files(url)
    assert problem.startswith("password_file=: can't read")


def test_the_document_tells_of_every_option_and_kind() -> None:
    """An operator finds what may stand in a URL."""
    text = DOCUMENT.read_text()
    for option in OPTIONS:
        assert f"{option}=" in text, option
    for form in ("rediss://HOST", "unix:///", "redis+sentinel://HOST", "redis+cluster://HOST", "rediss+cluster://"):
        assert form in text, form
