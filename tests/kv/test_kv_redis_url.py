"""URLs of a Redis are checked before anything connects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from router.kv.redis_url import check_redis_url


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h:6379/0",
        "rediss://user:p%40ss@[::1]:6380/15?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required",
        "redis://h/?db=3&password=x&protocol=3",
        "unix:///run/valkey.sock?db=1",
    ],
)
def test_what_is_accepted_makes_a_client(url: str) -> None:
    """The client takes what the check takes, its connection included."""
    assert check_redis_url(url) is None
    Redis.from_url(url).connection_pool.make_connection()


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
        "redis://h/0?protocol=9",
        "redis://h/0#x",
        "unix://",
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
    for url in (text, f"redis://{text}", f"redis://h/{text}", f"redis://h/0?{text}"):
        if check_redis_url(url) is None:
            Redis.from_url(url).connection_pool.make_connection()
