"""API keys: given once, known by their hash alone, whatever bytes they hold."""

from __future__ import annotations

import hashlib

import pytest

from router.errors import InvalidApiKeyError
from router.request.auth.keys import KeyTable, given_key

KEY = "wr-8Jr1ZyN0u3V"


def hashed(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


@pytest.mark.parametrize(
    "head",
    [
        [(b"Authorization", b"Bearer " + KEY.encode())],
        [(b"AUTHORIZATION", b"bearer   " + KEY.encode() + b"\t")],
        [(b"X-Api-Key", KEY.encode())],
        [(b"api-key", KEY.encode())],
        [(b"authorization", b"Bearer " + KEY.encode()), (b"x-api-key", KEY.encode())],
    ],
)
def test_a_key_is_read_where_clients_put_it(head: list[tuple[bytes, bytes]]) -> None:
    """OpenAI's, Anthropic's and Azure's clients are understood; the same key twice is one key."""
    assert given_key([(b"host", b"router"), *head]) == KEY.encode()


@pytest.mark.parametrize(
    "head",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer   ")],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")],
        [(b"authorization", b"Bearer a"), (b"x-api-key", b"b")],
        [(b"proxy-authorization", b"Bearer " + KEY.encode())],
        [(b"cookie", b"api-key=" + KEY.encode())],
    ],
)
def test_none_or_more_than_one_key_is_refused(head: list[tuple[bytes, bytes]]) -> None:
    """Which of two keys counts must not depend on who reads the head."""
    with pytest.raises(InvalidApiKeyError) as caught:
        given_key(head)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", [b"plain", "schlüssel-ключ-鍵".encode(), b"\xff\xfe\x00\x80", b"x" * 10_000])
def test_a_key_may_hold_any_bytes(key: bytes) -> None:
    """Non-ASCII keys are compared as the bytes that were sent."""
    table = KeyTable({hashed(b"other"): "b", hashed(key): "a"}, b"blind")
    assert table.owner(key) == "a"
    with pytest.raises(InvalidApiKeyError):
        table.owner(key + b" ")


def test_a_hash_is_no_key() -> None:
    """Whoever reads the configuration's file gets in nowhere."""
    table = KeyTable({hashed(b"secret"): "a"}, b"blind")
    for key in (hashed(b"secret").encode(), hashlib.sha256(b"secret").digest(), b""):
        with pytest.raises(InvalidApiKeyError):
            table.owner(key)


def test_no_owner_no_entry() -> None:
    """An empty table lets nobody in."""
    with pytest.raises(InvalidApiKeyError):
        KeyTable[str]({}, b"blind").owner(b"x")
