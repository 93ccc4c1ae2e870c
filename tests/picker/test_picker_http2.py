"""The picker's own HTTP/2 and gRPC, frame by frame: windows, cuts, what no peer may do, and leaving."""

from __future__ import annotations

import asyncio
from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.picker import frames
from router.picker.calls import Call, Methods, Status
from router.picker.frames import Code, Setting, frame
from router.picker.http2 import Connection, OpenConnections

Frame = tuple[int, int, int, bytes]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.is_paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def frames(self) -> list[Frame]:
        """What was written since the last look."""
        data, self.written = self.written, b""
        found = []
        while data:
            length = int.from_bytes(data[:3], "big")
            found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + length]))
            data = data[9 + length :]
        return found


class Echo:
    """Answers each message with itself, and ends the call with the caller."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_gone = False
        self.was_too_long = False

    def message(self, message: bytes) -> None:
        self.call.send(message)

    def too_long(self) -> None:
        self.was_too_long = True

    def ended(self) -> None:
        self.call.finish()

    def cancelled(self) -> None:
        self.is_gone = True


class Peer:
    """A gateway at a connection in memory."""

    def __init__(self, max_streams: int = 10) -> None:
        self.served: list[Echo] = []
        methods = Methods({b"/echo/Echo": self._serve}, 100_000)
        self.connection = Connection(methods.accept, OpenConnections(), max_streams)
        self.wire: Any = Wire()
        self.connection.connection_made(self.wire)
        self.encoder = hpack.Encoder()
        self.wire.frames()

    def _serve(self, call: Call) -> Echo:
        self.served.append(Echo(call))
        return self.served[-1]

    def headers(self, stream: int, path: str = "/echo/Echo", flags: int = frames.END_HEADERS) -> bytes:
        return frame(frames.HEADERS, flags, stream, self.encoder.encode([(":method", "POST"), (":path", path)]))

    def tell(self, *data: bytes) -> list[Frame]:
        """Send frames at once; return what is answered to them."""
        self.connection.data_received(b"".join(data))
        found: list[Frame] = self.wire.frames()
        return found

    def begin(self, *settings: tuple[Setting, int]) -> None:
        self.tell(frames.PREFACE, frames.settings(dict(settings)))


def data(stream: int, message: bytes, *, ends: bool = False) -> bytes:
    body = b"\0" + len(message).to_bytes(4, "big") + message
    pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    last = len(pieces) - 1
    flags = [frames.END_STREAM if ends and number == last else 0 for number in range(len(pieces))]
    return b"".join(frame(frames.DATA, flag, stream, piece) for flag, piece in zip(flags, pieces, strict=True))


def messages_in(found: list[Frame], stream: int = 1) -> list[bytes]:
    body = b"".join(payload for kind, _, number, payload in found if (kind, number) == (frames.DATA, stream))
    messages = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        messages.append(body[5 : 5 + size])
        body = body[5 + size :]
    return messages


def status_in(found: list[Frame]) -> list[int]:
    """gRPC statuses, of trailers and of answers that have nothing else."""
    decoder = hpack.Decoder()
    blocks = [dict(decoder.decode(payload)) for kind, _, _, payload in found if kind == frames.HEADERS]
    return [int(block["grpc-status"]) for block in blocks if "grpc-status" in block]


def closed_with(found: list[Frame]) -> Code:
    (why,) = [payload for kind, _, _, payload in found if kind == frames.GOAWAY]
    return Code(int.from_bytes(why[4:8], "big"))


@given(st.lists(st.binary(max_size=40_000), min_size=1, max_size=4), st.integers(1, 30_000))
def test_messages_pass_however_they_are_cut(sent: list[bytes], step: int) -> None:
    """Two streams in turn; what comes in pieces of any size is answered whole, in order, with status OK."""
    peer = Peer()
    told = frames.PREFACE + frames.settings({}) + peer.headers(1) + peer.headers(3)
    for message in sent:
        told += data(1, message) + data(3, message)
    told += frame(frames.DATA, frames.END_STREAM, 1) + frame(frames.DATA, frames.END_STREAM, 3)
    told += frames.window_update(0, 10**9) + frames.window_update(1, 10**9) + frames.window_update(3, 10**9)
    found: list[Frame] = []
    for at in range(0, len(told), step):
        found += peer.tell(told[at : at + step])
    assert messages_in(found, 1) == sent
    assert messages_in(found, 3) == sent
    assert status_in(found) == [Status.OK, Status.OK]


def test_nothing_is_sent_beyond_the_windows() -> None:
    """The stream's, which settings change, and the connection's: the rest follows, then the status."""
    peer = Peer()
    peer.begin((Setting.INITIAL_WINDOW_SIZE, 1_000))
    sent = bytes(70_000)
    found = peer.tell(peer.headers(1), data(1, sent, ends=True))
    assert [len(payload) for kind, _, _, payload in found if kind == frames.DATA] == [1_000]
    found += peer.tell(frames.settings({Setting.INITIAL_WINDOW_SIZE: 30_000}))
    assert sum(len(payload) for kind, _, _, payload in found if kind == frames.DATA) == 30_000
    found += peer.tell(frames.window_update(1, 10**6))
    assert sum(len(payload) for kind, _, _, payload in found if kind == frames.DATA) == frames.FIRST_WINDOW_BYTES
    assert status_in(found) == []
    found += peer.tell(frames.window_update(0, 10**6))
    assert messages_in(found) == [sent]
    assert status_in(found) == [Status.OK]


def test_the_peers_windows_are_opened_again() -> None:
    """A body of many windows can be sent: what came is given back."""
    peer = Peer()
    peer.begin()
    found = peer.tell(peer.headers(1), data(1, bytes(90_000)))
    opened = [int.from_bytes(payload, "big") for kind, _, stream, payload in found if kind == frames.WINDOW_UPDATE]
    assert sum(opened) > 90_000 - 32_768


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Code.PROTOCOL_ERROR),
        (frames.PREFACE + b"\xff\xff\xff\0\0\0\0\0\0", Code.FRAME_SIZE_ERROR),
        (frames.PREFACE + frame(frames.DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x82"), Code.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff"), Code.COMPRESSION_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, 0, 1, b"\x82") + frame(frames.PING, 0, 0, b"8" * 8),
         Code.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1, b"\0" * 16_000) * 5,
         Code.ENHANCE_YOUR_CALM),
        (frames.PREFACE + frames.window_update(0, 0), Code.PROTOCOL_ERROR),
        (frames.PREFACE + frames.window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
        (frames.PREFACE + frame(frames.SETTINGS, 0, 0, b"12345"), Code.FRAME_SIZE_ERROR),
        (frames.PREFACE + frame(frames.PUSH_PROMISE, 0, 1), Code.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 1, b"\x09\x82"),
         Code.PROTOCOL_ERROR),
    ],
)  # fmt: skip
def test_what_no_peer_may_do(told: bytes, code: Code) -> None:
    """The connection is closed, and says why."""
    peer = Peer()
    assert closed_with(peer.tell(told)) == code
    assert peer.wire.is_closed


@given(st.binary(max_size=400))
def test_no_bytes_break_a_connection(told: bytes) -> None:
    """Whatever comes, the connection goes on or is closed by the rules, never by an error of its own."""
    peer = Peer()
    peer.begin()
    codes = [closed_with([sent]) for sent in peer.tell(peer.headers(1), told) if sent[0] == frames.GOAWAY]
    assert Code.INTERNAL_ERROR not in codes


def test_calls_that_are_refused() -> None:
    """A method that is not served, messages that are compressed or too long or cut short; one stream too many."""
    peer = Peer(max_streams=2)
    peer.begin()
    assert status_in(peer.tell(peer.headers(1, "/echo/Other"))) == [Status.UNIMPLEMENTED]
    assert status_in(peer.tell(peer.headers(3), frame(frames.DATA, 0, 3, b"\1\0\0\0\0"))) == [Status.UNIMPLEMENTED]
    long = (100_001).to_bytes(4, "big")
    assert status_in(peer.tell(peer.headers(5), frame(frames.DATA, 0, 5, b"\0" + long))) == [Status.RESOURCE_EXHAUSTED]
    assert peer.served[-1].was_too_long
    cut = frame(frames.DATA, frames.END_STREAM, 7, b"\0\0\0\0\4ab")
    assert status_in(peer.tell(peer.headers(7), cut)) == [Status.INTERNAL]
    assert peer.served[-1].is_gone
    found = peer.tell(peer.headers(9), peer.headers(11), peer.headers(13))
    assert (frames.RST_STREAM, 0, 13, Code.REFUSED_STREAM.to_bytes(4, "big")) in found


def test_a_stream_that_is_reset_is_told() -> None:
    """Nothing more is sent on it; the connection serves others."""
    peer = Peer()
    peer.begin()
    peer.tell(peer.headers(1), data(1, b"a"), frames.reset(1, Code.CANCEL))
    assert peer.served[0].is_gone
    peer.served[0].call.send(b"late")
    peer.served[0].call.finish()
    assert peer.wire.frames() == []
    assert messages_in(peer.tell(data(1, b"too late"), peer.headers(3), data(3, b"b")), 3) == [b"b"]


def test_who_does_not_read_is_not_read_from() -> None:
    """Pings can't make answers pile up."""
    peer = Peer()
    peer.begin()
    assert peer.tell(frame(frames.PING, 0, 0, b"12345678")) == [(frames.PING, frames.ACK, 0, b"12345678")]
    peer.connection.pause_writing()
    assert peer.wire.is_paused
    peer.connection.resume_writing()
    assert not peer.wire.is_paused


async def test_leaving_serves_what_was_under_way() -> None:
    """Two steps: what the gateway sent before it heard is served, what it sends later is not; then it is closed."""
    peer = Peer()
    peer.begin()
    peer.tell(peer.headers(1), data(1, b"a"))
    peer.connection.drain()
    (first, ping) = peer.wire.frames()
    assert (first[0], int.from_bytes(first[3][:4], "big")) == (frames.GOAWAY, frames.MAX_WINDOW_BYTES)
    assert messages_in(peer.tell(peer.headers(3), data(3, b"b")), 3) == [b"b"]
    found = peer.tell(frame(frames.PING, frames.ACK, 0, ping[3]), peer.headers(5), data(5, b"c"))
    assert [int.from_bytes(payload[:4], "big") for kind, _, _, payload in found if kind == frames.GOAWAY] == [3]
    assert messages_in(found, 5) == []
    peer.tell(frame(frames.DATA, frames.END_STREAM, 1))
    assert not peer.wire.is_closed
    peer.tell(frame(frames.DATA, frames.END_STREAM, 3))
    assert peer.wire.is_closed


async def test_a_connection_that_is_lost_takes_its_calls_along() -> None:
    """They are told, and the connection is counted no longer."""
    peer = Peer()
    peer.begin()
    peer.tell(peer.headers(1))
    open_connections = peer.connection._open_connections
    assert not open_connections.emptied.is_set()
    peer.connection.connection_lost(None)
    assert peer.served[0].is_gone
    await asyncio.wait_for(open_connections.emptied.wait(), 1)
