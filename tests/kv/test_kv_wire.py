"""The wire format: what goes in comes out, and nothing but WireError comes of rubbish."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv import wire
from router.kv.wire import WIRE_VERSION, BlocksBatch, Change, Heartbeat, Snapshot, StateChange, WireError

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=40)
NUMBER = st.integers(0, 65_535)
COUNTER = st.integers(0, 2**63 - 1)
UNIT = st.text(min_size=1, max_size=40)
CHANGE = st.builds(Change, st.sampled_from(["stored", "removed", "cleared"]), NUMBER, NUMBER, NUMBER, HASHES)
LOAD = st.none() | st.integers(0, 10_000)
MESSAGE = st.one_of(
    st.builds(BlocksBatch, UNIT, COUNTER, COUNTER, st.lists(CHANGE, max_size=6).map(tuple)),
    st.builds(Heartbeat, UNIT, COUNTER, COUNTER, LOAD, LOAD, st.none() | st.floats(0, 1)),
    st.builds(StateChange, UNIT, COUNTER, st.sampled_from(["ready", "draining", "gone"])),
)


@given(MESSAGE)
def test_a_message_round_trips(message: wire.Message) -> None:
    """Decoding an encoded message gives the message."""
    assert wire.decode(wire.encode(message)) == message


def test_a_batch_has_its_documented_bytes() -> None:
    """Version 2 of a batch is these bytes, whatever later code does: other processes read them."""
    batch = BlocksBatch("r0/0", 5, 7, (Change("stored", 1, 2, 1, [1, 2**64 - 1]), Change("cleared")), 0.25)
    hashes = bytes.fromhex("0000000000000001ffffffffffffffff")
    expected = [2, 1, "r0/0", 5, 7, [[0, 1, 2, 1, hashes], [2, 0, 0, 0, b""]], 250]
    assert wire.encode(batch) == msgspec.msgpack.encode(expected)


@pytest.mark.parametrize(("behind_s", "told_s"), [(-3.0, 0.0), (1e9, wire.MAX_BEHIND_S), (0.0019, 0.001)])
def test_how_far_an_agent_is_behind_has_a_range(behind_s: float, told_s: float) -> None:
    """Clocks that run apart say nonsense, and nothing breaks of it."""
    read = wire.decode(wire.encode(Heartbeat("r0/0", 5, 7, behind_s=behind_s)))
    assert isinstance(read, Heartbeat)
    assert read.behind_s == told_s


def test_a_stored_block_takes_at_most_16_bytes() -> None:
    """A batch of 16 blocks stays within 16 bytes a block in the stream."""
    batch = BlocksBatch("replica-with-a-long-name-0/0", 2**50, 2**31, (Change("stored", 0, 0, 0, range(16)),))
    assert len(wire.encode(batch)) <= 16 * 16


@given(st.binary(max_size=300))
def test_rubbish_raises_nothing_but_wire_error(data: bytes) -> None:
    """Random bytes are refused as WireError, by both decoders."""
    for decode in (wire.decode, lambda d: wire.decode_chunks([d])):
        with contextlib.suppress(WireError):
            decode(data)


JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=9)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.sampled_from([0, 1, 2]), st.sampled_from([1, 2, 3, 16]), st.lists(JSONISH, max_size=8))
def test_wrong_types_raise_nothing_but_wire_error(version: int, kind: int, fields: list[object]) -> None:
    """A well-formed array with fields of any type is a message or a WireError."""
    data = msgspec.msgpack.encode([version, kind, *fields])
    for decode in (wire.decode, lambda d: wire.decode_chunks([d])):
        with contextlib.suppress(WireError):
            decode(data)


@given(MESSAGE, st.data())
def test_a_damaged_message_raises_nothing_but_wire_error(message: wire.Message, data: st.DataObject) -> None:
    """Any byte changed, or the end cut off: a message or a WireError."""
    damaged = bytearray(wire.encode(message))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(1, len(damaged))) :]
    with contextlib.suppress(WireError):
        wire.decode(bytes(damaged))


def _with_version(message: wire.Message, version: int, *more: object) -> bytes:
    fields = msgspec.msgpack.decode(wire.encode(message))
    return msgspec.msgpack.encode([version, *fields[1:], *more])


@pytest.mark.parametrize("version", [WIRE_VERSION - 1, WIRE_VERSION, WIRE_VERSION + 1])
def test_one_version_apart_is_read(version: int) -> None:
    """Messages of the neighbouring versions are read, and fields they add at the end are ignored."""
    beat = Heartbeat("r0/0", 1, 2, 3, 4, 0.5)
    assert wire.decode(_with_version(beat, version, "a new field")) == beat


@pytest.mark.parametrize("version", [WIRE_VERSION - 2, WIRE_VERSION + 2])
def test_two_versions_apart_are_refused(version: int) -> None:
    """A message from two versions away raises WireError that names both versions."""
    with pytest.raises(WireError, match=f"{version}.*{WIRE_VERSION}"):
        wire.decode(_with_version(StateChange("r0/0", 1, "gone"), version))


def test_an_unknown_kind_is_none() -> None:
    """A kind that this version does not know is to be skipped, so it is None."""
    assert wire.decode(msgspec.msgpack.encode([WIRE_VERSION + 1, 99, "r0/0"])) is None


LAYERS = st.dictionaries(
    st.tuples(NUMBER, NUMBER, NUMBER), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=500), max_size=5
).map(lambda layers: [(*layer, hashes) for layer, hashes in layers.items()])


@given(LAYERS, st.integers(1024, 4096), st.randoms())
def test_a_snapshot_round_trips_in_bounded_chunks(layers: list, max_bytes: int, random) -> None:  # type: ignore[no-untyped-def,type-arg]
    """Chunks never pass their bound, and in any order they give the snapshot."""
    chunks = Snapshot("r0/0", 9, 4, "17-3", layers).encode_chunks(max_bytes)
    assert all(len(chunk) <= max_bytes for chunk in chunks)
    random.shuffle(chunks)
    read = wire.decode_chunks(chunks)
    assert (read.unit, read.epoch, read.sequence, read.stream_id) == ("r0/0", 9, 4, "17-3")
    assert {layer[:3]: list(layer[3]) for layer in read.layers} == {layer[:3]: layer[3] for layer in layers}


def test_a_snapshot_takes_little_more_than_8_bytes_a_block() -> None:
    """50,000 blocks take under 24 bytes a block."""
    chunks = Snapshot("r0/0", 9, 4, "17-3", [(0, 0, 0, range(50_000))]).encode_chunks()
    assert sum(map(len, chunks)) < 24 * 50_000
    assert max(map(len, chunks)) <= 128 * 1024


@pytest.mark.parametrize("spoil", ["missing", "doubled", "mixed", "none"])
def test_an_incomplete_snapshot_is_refused(spoil: str) -> None:
    """A missing, doubled or foreign chunk is a WireError, never half a snapshot."""
    chunks = Snapshot("r0/0", 9, 4, "17-3", [(0, 0, 0, range(1000))]).encode_chunks(1024)
    other = Snapshot("r0/0", 9, 5, "17-3", [(0, 0, 0, range(1000))]).encode_chunks(1024)
    spoilt = {
        "missing": chunks[:-1],
        "doubled": [*chunks, chunks[0]],
        "mixed": [*chunks[:-1], other[-1]],
        "none": [],
    }[spoil]
    with pytest.raises(WireError):
        wire.decode_chunks(spoilt)
