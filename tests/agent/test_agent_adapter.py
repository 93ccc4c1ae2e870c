"""vLLM's events in every form become the same engine-neutral events, and nothing stops the adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.agent.adapters import Adapter, adapters
from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.proof import SchemeProof
from replica.agent.unit import UnitState
from router.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, GroupKind, Tier

ADAPTER = VllmAdapter()


def read(*events: Any, rank: int | None = 0) -> list[Any]:
    batch = [1.5, list(events)] + ([] if rank is None else [rank])
    return ADAPTER.read(msgspec.msgpack.encode(batch)).events


def as_array(event: dict[str, Any], fields: int) -> list[Any]:
    order = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"]
    order += ["extra_keys", "group_idx", "kv_cache_spec_kind"]
    return ["BlockStored", *(event[name] for name in order[:fields])]


STORED = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": list(range(32)),
    "block_size": 16,
    "lora_id": 1,
    "medium": "GPU",
    "lora_name": "sql",
    "extra_keys": [["sql"], ["sql"]],
    "group_idx": 3,
    "kv_cache_spec_kind": "sliding_window",
}


def test_maps_and_arrays_of_any_age_give_the_same_blocks() -> None:
    """A map, arrays of 4, 7 and 10 fields, and a map in another order store the same blocks; absent is None."""
    shuffled = dict(reversed(STORED.items()))
    four, seven, ten, one, other = read(
        as_array(STORED, 4), as_array(STORED, 7), as_array(STORED, 10), STORED, shuffled
    )
    assert one == other == ten
    assert {event.hashes for event in (four, seven, ten, one)} == {(11, 12)}
    assert (four.parent, four.lora_name, four.extra_keys, four.group, four.tier) == (10, None, None, 0, Tier.GPU)
    assert (seven.lora_name, seven.extra_keys) == ("sql", None)
    assert (one.group, one.kind, one.extra_keys) == (3, GroupKind.WINDOW, (["sql"], ["sql"]))


def test_a_batch_without_a_rank_is_read() -> None:
    """The outer batch of older releases has no rank."""
    batch = ADAPTER.read(msgspec.msgpack.encode([1.5, [STORED]]))
    assert (batch.rank, len(batch.events), batch.at_s) == (None, 1, 1.5)


def test_hashes_of_every_form_are_one_identity() -> None:
    """Unsigned, signed and whole-digest forms of one hash are the same 64 bits."""
    digest = bytes(range(24)) + b"\xfe" * 8
    unsigned = int.from_bytes(b"\xfe" * 8, "big")
    (event,) = read({**STORED, "block_hashes": [unsigned, unsigned - 2**64, digest], "parent_block_hash": digest})
    assert event.hashes == (unsigned,) * 3
    assert event.parent == unsigned


def test_removed_and_cleared_are_read_in_both_forms() -> None:
    """Removals and clears, as map and as array, keep their order."""
    events = read(
        {"type": "BlockRemoved", "block_hashes": [5], "medium": "CPU", "group_idx": 1},
        ["BlockRemoved", [6], "GPU"],
        {"type": "AllBlocksCleared"},
        ["AllBlocksCleared"],
    )
    assert events[0] == BlockRemoved((5,), Tier.CPU, 1)
    assert events[1] == BlockRemoved((6,), Tier.GPU, 0)
    assert [type(event) for event in events[2:]] == [AllBlocksCleared, AllBlocksCleared]


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        ("GPU", Tier.GPU),
        ("CPU", Tier.CPU),
        ("cpu", Tier.CPU),
        ("STORAGE", Tier.DISK),
        (None, Tier.GPU),
        ("TAPE", Tier.GPU),
    ],
)
def test_a_medium_is_a_tier_and_an_unknown_one_is_gpu(medium: str | None, tier: Tier) -> None:
    """Unknown media count as GPU."""
    (event,) = read({**STORED, "medium": medium})
    assert event.tier is tier


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("full_attention", GroupKind.FULL),
        ("mla_attention", GroupKind.FULL),
        (None, GroupKind.FULL),
        ("sliding_window", GroupKind.WINDOW),
        ("sliding_window_mla", GroupKind.WINDOW),
        ("mamba", GroupKind.WINDOW),
        ("chunked_local_attention", GroupKind.WINDOW),
        ("something_of_next_year", GroupKind.WINDOW),
    ],
)
def test_only_full_attention_is_a_prefix_group(kind: str | None, expected: GroupKind) -> None:
    """Any group that is not known to reach back to the first token is a window."""
    (event,) = read({**STORED, "kv_cache_spec_kind": kind})
    assert event.kind is expected


@pytest.mark.parametrize(
    ("kind", "window", "tail"),
    [
        ("sliding_window", 64, 63),
        ("sliding_window_mla", 1, 1),
        ("sliding_window", None, 0),
        ("sliding_window", -5, 0),
        ("sliding_window", "64", 0),
        ("sliding_window", 2**40, 0),
        ("mamba", None, 1),
        ("chunked_local_attention", None, 0),
        ("full_attention", None, 0),
        (None, 64, 0),
        (["mamba"], 64, 0),
    ],
)
def test_what_a_group_must_hold_before_a_prefix_s_end(kind: object, window: object, tail: int) -> None:
    """A window without the token that looks back, one state; 0 where that is not known."""
    (event,) = read({**STORED, "kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": window})
    assert event.tail_tokens == tail


def test_a_sparse_store_announces_its_own_hashes_alone() -> None:
    """One hash over the tokens of two blocks is one block; an empty list is none."""
    sparse, empty = read({**STORED, "block_hashes": [12]}, {**STORED, "block_hashes": []})
    assert (sparse.hashes, empty.hashes) == ((12,), ())


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "BlockMoved", "block_hashes": [1]},
        {"type": "BlockStored", "block_hashes": "x", "token_ids": [], "block_size": 16},
        {"type": "BlockStored", "block_hashes": [1.5], "token_ids": [], "block_size": 16},
        {"type": "BlockStored", "block_hashes": [b"short"], "token_ids": [], "block_size": 16},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [], "block_size": 0},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": 7, "block_size": 16},
        {"type": "BlockRemoved", "block_hashes": [1], "group_idx": -1},
        {"type": "BlockRemoved", "block_hashes": None},
        {"type": ["BlockRemoved"]},
        {},
        [],
        ["Nothing"],
        [["BlockStored"]],
        7,
        None,
        "BlockStored",
    ],
)
def test_an_odd_event_is_counted_and_its_batch_goes_on(odd: Any) -> None:
    """The event before and the one after are read; the odd one is counted."""
    batch = ADAPTER.read(msgspec.msgpack.encode([1.5, [STORED, odd, {"type": "AllBlocksCleared"}], 0]))
    assert [type(event) for event in batch.events] == [BlockStored, AllBlocksCleared]
    assert sum(batch.skipped.values()) == 1


def test_an_event_that_is_no_messagepack_leaves_its_batch_alone() -> None:
    """An event with invalid UTF-8 within is skipped by itself."""
    bad = b"\x81\xa4type\xa2\xff\xfe"
    good = msgspec.msgpack.encode(STORED)
    batch = ADAPTER.read(b"\x92" + msgspec.msgpack.encode(1.5) + b"\x93" + good + bad + good)
    assert [event.hashes for event in batch.events] == [(11, 12), (11, 12)]
    assert batch.skipped == {"malformed_event": 1}


def test_new_fields_are_counted_and_the_event_is_read() -> None:
    """A field of a later release does not hide the block."""
    payload = msgspec.msgpack.encode(
        [1.5, [{**STORED, "colour": "red"}, [*as_array(STORED, 10), 0, 0, 0, 0, "red"]], 0]
    )
    batch = ADAPTER.read(payload)
    assert [event.hashes for event in batch.events] == [(11, 12), (11, 12)]
    assert batch.skipped == {"unknown_field": 2}


def test_a_block_that_lies_elsewhere_is_not_this_units() -> None:
    """A REMOTE block is not held here."""
    assert read({**STORED, "locality": "REMOTE"}) == []
    assert len(read({**STORED, "locality": "LOCAL"})) == 1


EVERY = [make() for make in adapters().values()]


@given(st.binary(max_size=200), st.sampled_from(EVERY))
def test_no_bytes_stop_an_adapter(payload: bytes, adapter: Adapter) -> None:
    """Any payload is a batch, at worst an empty one."""
    adapter.read(payload)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
ODD_EVENT = st.dictionaries(st.sampled_from([*STORED, "locality", "x"]), ANY, max_size=8).map(
    lambda fields: {"type": "BlockStored", **fields}
) | st.lists(ANY, max_size=8).map(lambda values: ["BlockStored", *values])


@given(st.lists(ODD_EVENT | ANY, max_size=4), st.sampled_from(EVERY))
def test_no_field_of_any_type_stops_an_adapter(events: list[Any], adapter: Adapter) -> None:
    """Fields of any type are events or counted, and hashes that come out are 64 bits."""
    batch = adapter.read(msgspec.msgpack.encode([1.0, events, 0]))
    for event in batch.events:
        for block in getattr(event, "hashes", ()):
            assert 0 <= block < 2**64


NEAR_EVENT = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
        "block_hashes": st.lists(st.integers(0, 20), max_size=6),
        "parent_block_hash": st.none() | st.integers(0, 20),
        "token_ids": st.lists(st.integers(-1, 2**64 - 1) | ANY, max_size=6) | st.just([1] * 16) | st.just([1] * 32),
        "block_size": st.sampled_from([1, 2, 16, 0, -1, 2**40]),
    },
    optional={
        "medium": st.sampled_from(["GPU", "CPU", "EXTERNAL", None, 7]),
        "lora_name": st.sampled_from(["sql", "other", None]),
        "extra_keys": st.lists(st.none() | st.lists(ANY, max_size=2), max_size=6) | ANY,
        "group_idx": st.integers(0, 2) | ANY,
        "cache_salt": ANY,
    },
)


@given(st.lists(st.lists(NEAR_EVENT | ODD_EVENT, max_size=4), max_size=5), st.sampled_from(EVERY), st.booleans())
def test_no_event_stops_a_unit(batches: list[list[Any]], adapter: Adapter, maps: bool) -> None:
    """Whatever an adapter lets through, a unit counts it, under the engine's names and under its own, and its
    published changes are what it holds."""
    proof = SchemeProof("none" if maps else None, 16, None)
    unit = UnitState("r0/0", adapter, proof, 8, maps=maps)
    unit.adapters = {"sql": "/loras/sql"}
    known: set[tuple[int, int, int]] = set()
    life = unit.life
    for sequence, events in enumerate(batches):
        changes = unit.accept(sequence, msgspec.msgpack.encode([1.0, events, 0]))
        layers = {(block, tier, group) for tier, group, _, hashes in unit.layers() for block in hashes}
        if unit.life != life:
            life, known = unit.life, layers
            continue
        for change in changes:
            blocks = {(block, change.tier, change.group) for block in change.hashes}
            known = set() if change.op == "cleared" else known | blocks if change.op == "stored" else known - blocks
        assert known == layers


@given(st.data())
def test_no_damaged_frame_of_the_real_engine_stops_the_adapter(recordings, data) -> None:  # type: ignore[no-untyped-def]
    """Recorded payloads with any bytes changed or cut are read or counted."""
    frames = recordings[data.draw(st.sampled_from(sorted(recordings)))]
    payload = bytearray(frames[data.draw(st.integers(0, len(frames) - 1))][2])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(1, len(payload))) :]
    ADAPTER.read(bytes(payload))


@pytest.mark.parametrize(
    ("name", "algorithm", "size"),
    [("sha256_cbor_bytes_block16", "sha256_cbor", 16), ("sha256_int_block32", "sha256", 32)],
)
def test_recorded_events_announce_the_vectors_hashes(  # type: ignore[no-untyped-def]
    name: str, algorithm: str, size: int, recordings, golden: Path
) -> None:
    """Sent as int or as bytes, the recording's hashes include every block of the requests recorded with it."""
    vectors = json.loads((golden / "vectors" / "vllm-0.32-hashes.json").read_text())["engine"]
    expected = {
        int.from_bytes(bytes.fromhex(digest)[-8:], "big")
        for vector in vectors
        if (vector["algo"], vector["block_size"]) == (algorithm, size)
        for digest in vector.get("ref_block_hashes", ())
    }
    announced = {
        block
        for _, _, payload in recordings[name]
        for event in ADAPTER.read(payload).events
        if isinstance(event, BlockStored)
        for block in event.hashes
    }
    assert len(expected) >= 35
    assert expected <= announced


def test_every_adapter_is_in_the_table_by_its_name() -> None:
    """The table's names are the adapters' own."""
    assert {name: make().name for name, make in adapters().items()} == {
        "vllm": "vllm",
        "sglang": "sglang",
    }
