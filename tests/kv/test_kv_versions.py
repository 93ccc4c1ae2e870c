"""Agents and routers one wire version apart understand each other, in both orders: held against recorded bytes.

The rule (router/kv/wire.py): a version adds kinds, and fields at the end, and nothing else. So what is recorded of an
earlier version is read as it was meant, and what a later one adds is skipped.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from router.kv import doubts, drains, registration, router_load, wire
from router.kv.wire import Heartbeat, WireError


@pytest.fixture(scope="module")
def made(golden: Path) -> ModuleType:
    """What was recorded, as values."""
    spec = importlib.util.spec_from_file_location("make_wire", golden / "make_wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERSIONS = [1, 2]
"""Those that are recorded: the present one and all before it that are one apart."""


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version}")
def recorded(request: Any, golden: Path) -> dict[str, Any]:
    """What a version wrote."""
    record: dict[str, Any] = json.loads((golden / "wire" / f"v{request.param}.json").read_text())
    assert record["version"] == request.param
    return record


def test_the_present_version_is_recorded(made: ModuleType, golden: Path) -> None:
    """Today's writers write what is recorded, byte for byte: changing it is another version, recorded anew."""
    record = json.loads((golden / "wire" / f"v{wire.WIRE_VERSION}.json").read_text())
    assert made.recorded() == record
    assert [version for version in (wire.WIRE_VERSION - 1, wire.WIRE_VERSION) if version > 0] == VERSIONS


def test_recorded_messages_are_read_as_they_were_meant(recorded: dict[str, Any], made: ModuleType) -> None:
    """By today's readers: batches, heartbeats, states."""
    read = {name: wire.decode(bytes.fromhex(data)) for name, data in recorded["messages"].items()}
    since = {"stored, told late": 2, "heartbeat of one that is behind": 2, "heartbeat with cache counters": 2}
    assert read == {
        name: message for name, message in made.MESSAGES.items() if recorded["version"] >= since.get(name, 1)
    }


def test_a_recorded_snapshot_is_read(recorded: dict[str, Any], made: ModuleType) -> None:
    """All its chunks, in any order."""
    chunks = [bytes.fromhex(data) for data in recorded["snapshot"]]
    assert len(chunks) > 1
    read = wire.decode_chunks(reversed(chunks))
    expected = made.SNAPSHOT
    head = (read.unit, read.epoch, read.sequence, read.stream_id)
    assert head == (expected.unit, expected.epoch, expected.sequence, expected.stream_id)
    assert [(*layer[:3], list(layer[3])) for layer in read.layers] == [
        (*layer[:3], list(layer[3])) for layer in expected.layers
    ]


def test_recorded_leases_orders_and_doubts_are_read(recorded: dict[str, Any], made: ModuleType) -> None:
    """Signed and unsigned."""
    unsigned, signed = (bytes.fromhex(recorded[name]) for name in ("lease", "signed lease"))
    lease = msgspec.structs.replace(made.LEASE, wire=recorded["version"])
    assert registration.decode(unsigned, None, made.UNIT) == lease
    assert registration.decode(signed, made.SECRET, made.UNIT) == lease
    order = drains.decode(bytes.fromhex(recorded["drain"]), made.SECRET, "pod-7", made.DRAIN.until_unix_s - 60)
    assert order == made.DRAIN
    assert doubts.decode(bytes.fromhex(recorded["doubt"])) == made.DOUBT
    load = router_load.decode(bytes.fromhex(recorded["router load"]))
    assert load is not None
    name, rows = made.LOAD
    assert load.router == name
    # What came later than the record's version is left out there.
    assert [(row.unit, row.requests, row.tokens) for row in load.rows] == [
        (row.unit, row.requests, row.tokens) for row in rows
    ]


def of_next_version(data: bytes, *more: Any) -> bytes:
    """Return a message as the next version would write it: with fields that nobody knows yet."""
    fields = msgspec.msgpack.decode(data)
    return msgspec.msgpack.encode([wire.WIRE_VERSION + 1, *fields[1:], *more])


def test_the_next_versions_messages_are_read(made: ModuleType) -> None:
    """Fields that it adds are skipped, and so are kinds; its changes may have more in them too."""
    for message in made.MESSAGES.values():
        assert wire.decode(of_next_version(wire.encode(message), "new", {"a": 1}, None)) == message
    fields = msgspec.msgpack.decode(wire.encode(made.MESSAGES["stored"]))
    fields[5] = [[*change, "new"] for change in fields[5]]
    assert wire.decode(of_next_version(msgspec.msgpack.encode(fields))) == made.MESSAGES["stored"]
    assert wire.decode(msgspec.msgpack.encode([wire.WIRE_VERSION + 1, 99, made.UNIT])) is None
    chunks = [of_next_version(chunk, "new") for chunk in made.SNAPSHOT.encode_chunks(1024)]
    assert wire.decode_chunks(chunks).sequence == made.SNAPSHOT.sequence
    name, rows = made.LOAD
    more = [[*msgspec.structs.astuple(row), "new"] for row in rows]
    newer = msgspec.msgpack.encode([router_load.VERSION + 1, name, more, "new"])
    read = router_load.decode(newer)
    assert read is not None
    assert (read.router, read.rows) == (name, rows)
    assert router_load.decode(msgspec.msgpack.encode([router_load.VERSION + 2, name, []])) is None
    assert (
        doubts.decode(msgspec.msgpack.encode([2, *msgspec.msgpack.decode(doubts.encode(made.DOUBT))[1:], 1]))
        is not None
    )


def test_the_next_versions_leases_are_read(made: ModuleType) -> None:
    """Fields that it adds are skipped; the signature is over all of them."""
    payload = {**msgspec.json.decode(msgspec.json.encode(made.LEASE)), "wire": wire.WIRE_VERSION + 1, "new": [1]}
    from router.kv.signing import seal

    data = seal(msgspec.json.encode(payload), made.SECRET, b"warmroute registration\0")
    read = registration.decode(data, made.SECRET, made.UNIT)
    assert msgspec.structs.replace(read, wire=wire.WIRE_VERSION) == made.LEASE


def test_two_versions_apart_is_refused(made: ModuleType) -> None:
    """Rather than misread."""
    fields = msgspec.msgpack.decode(wire.encode(Heartbeat("r0/0", 1, 1)))
    with pytest.raises(WireError, match="version"):
        wire.decode(msgspec.msgpack.encode([wire.WIRE_VERSION + 2, *fields[1:]]))
    lease = msgspec.structs.replace(made.LEASE, wire=wire.WIRE_VERSION + 2)
    with pytest.raises(registration.RegistrationError, match="version"):
        registration.decode(registration.encode(lease, None), None)
