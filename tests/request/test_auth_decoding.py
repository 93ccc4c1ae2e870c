"""gzip bodies: decoded whole or refused, never at the price of the router's memory."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest

from router.errors import BodyTooLargeError, MalformedRequestError, UnsupportedEncodingError
from router.request.auth.decoding import MAX_MEMBERS, RATIO_FREE_BYTES, coding_of, gunzipped

LIMIT = 64 * 2**20


@pytest.mark.parametrize("size", [0, 1, 100, 300_000, 1_000_000])
def test_what_was_compressed_comes_back(size: int) -> None:
    """In one member or in several."""
    data = random.Random(size).randbytes(size)
    cut = size // 3
    assert gunzipped(gzip.compress(data), LIMIT, 100) == data
    assert gunzipped(gzip.compress(data[:cut]) + gzip.compress(data[cut:]), LIMIT, 100) == data


@pytest.mark.parametrize(
    "body", [b"x", b"\x1f\x8b", gzip.compress(b"{}", mtime=0)[:-1], gzip.compress(b"{}", mtime=0) + b"x", b"{}"]
)
def test_what_is_no_gzip_to_its_end_is_malformed(body: bytes) -> None:
    """Cut off, followed by something else, or none at all."""
    with pytest.raises(MalformedRequestError):
        gunzipped(body, LIMIT, 100)


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    """64 MiB of zeros weigh 64 KiB; a hundredfold of that is allowed."""
    bomb = gzip.compress(bytes(64 * 2**20), 6)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLargeError):
            gunzipped(bomb, LIMIT, 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(bomb) + 4 * 2**20


def test_a_body_over_the_size_limit_is_refused_exactly_there() -> None:
    """Decoded bytes count as any others."""
    data = random.Random(1).randbytes(100_000)
    assert len(gunzipped(gzip.compress(data), 100_000, 100)) == 100_000
    with pytest.raises(BodyTooLargeError):
        gunzipped(gzip.compress(data), 99_999, 100)


def test_a_short_body_may_grow_by_any_ratio() -> None:
    """A text of repeats is no attack."""
    data = b" " * RATIO_FREE_BYTES
    assert gunzipped(gzip.compress(data, 9), LIMIT, 2) == data
    with pytest.raises(BodyTooLargeError):
        gunzipped(gzip.compress(data + b" ", 9), LIMIT, 2)


def test_members_are_counted() -> None:
    """Millions of empty ones would cost time and give nothing."""
    with pytest.raises(MalformedRequestError):
        gunzipped(gzip.compress(b"") * (MAX_MEMBERS + 1), LIMIT, 100)


@pytest.mark.parametrize(
    ("values", "gzipped"),
    [([], False), ([b"identity"], False), ([b"gzip"], True), ([b" X-GZIP "], True), ([b"identity, gzip"], True)],
)
def test_the_coding_is_read(values: list[bytes], gzipped: bool) -> None:
    """As RFC 9110 writes it."""
    assert coding_of(values) is gzipped


@pytest.mark.parametrize("values", [[b"br"], [b"deflate"], [b"zstd"], [b"gzip, gzip"], [b"gzip", b"br"], [b"gzip;q=1"]])
def test_other_codings_are_refused(values: list[bytes]) -> None:
    """415: the router could not see what it forwards."""
    with pytest.raises(UnsupportedEncodingError):
        coding_of(values)
