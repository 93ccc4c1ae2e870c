"""The chunked coding of request bodies."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import MalformedRequestError
from router.proxy.chunked import LINE_BYTES, TRAILER_BYTES, ChunkedBody

CODED = b"5\r\nhello\r\n006;name=value\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n"


def decode(data: bytes, pieces: int = 1) -> tuple[bytes, int, bool]:
    body, out, used = ChunkedBody(), b"", 0
    step = max(1, -(-len(data) // pieces))
    for at in range(0, len(data), step):
        got, taken = body.feed(data[at : at + step])
        out += b"".join(got)
        used += taken
    return out, used, body.done


@given(cut=st.integers(1, len(CODED)))
def test_split_anywhere(cut: int) -> None:
    """Chunks, an extension and a trailer decode alike however they are cut; what follows is left alone."""
    assert decode(CODED, cut) == (b"hello world", len(CODED), True)
    assert decode(CODED + b"GET / HTTP/1.1", 1) == (b"hello world", len(CODED), True)


@pytest.mark.parametrize(
    "data",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 ;x\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"g\r\n",
        b"11111111111111111\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"5;\x00\r\nhello\r\n",
        b"5_0\r\n",
        b"0;x=yX: y\r\n\r\n",
        b"5;\r\nhello\r\n0\r\n\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\nX: a\n\r\n",
        b"0\r\n folded\r\n\r\n",
        b"5;" + b"a" * (LINE_BYTES + 1),
        b"0\r\n" + b"X: " + b"a" * 2_000 + b"\r\n" * 1 + (b"X: " + b"a" * 2_000 + b"\r\n") * (TRAILER_BYTES // 2_000),
    ],
)
def test_malformed_is_refused(data: bytes) -> None:
    """Every deviation that two parsers could read differently is an error, whole or byte by byte."""
    with pytest.raises(MalformedRequestError):
        decode(data)
    with pytest.raises(MalformedRequestError):
        decode(data, len(data))


class _Llhttp:
    def __init__(self) -> None:
        self.body = b""
        self.done = False

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.done = True


@given(
    st.lists(st.sampled_from([b"0", b"5", b"a", b"\r\n", b"\n", b"\r", b"hello", b";x=y", b"X: y", b" "]), max_size=14)
)
def test_llhttp_takes_what_we_take(parts: list[bytes]) -> None:
    """Whatever decodes here decodes to the same bytes in llhttp: we are never the more lenient of two parsers."""
    data = b"".join(parts)
    try:
        ours, used, done = decode(data)
    except MalformedRequestError:
        return
    if not done:
        return
    other = _Llhttp()
    parser = httptools.HttpRequestParser(other)
    parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    parser.feed_data(data[:used])
    assert other.done
    assert other.body == ours
