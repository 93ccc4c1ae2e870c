"""KV events on real sockets: frames, order, replay, and every form that agents have to read."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from replica.simengine.core.events import BlockRemoved, BlocksStored, CacheCleared, CacheEvent
from replica.simengine.faults import Faults
from replica.simengine.publisher import BUFFERED_BATCHES, EventEncoder, Publisher

Start = Callable[..., Any]
FAST = ("--decode-step-s", "0.001", "--prefill-tokens-per-s", "1000000", "--hash-algo", "sha256_cbor")
STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
)


@pytest.fixture
def sockets() -> Iterator[Callable[[int, str], zmq.Socket[bytes]]]:
    """`sockets(kind, address)`: a connected socket that waits at most 5 s for a message."""
    context = zmq.Context()
    opened: list[zmq.Socket[bytes]] = []

    def connected(kind: int, address: str) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.SUB:
            socket.subscribe(b"")
        socket.connect(address)
        opened.append(socket)
        return socket

    yield connected
    for socket in opened:
        socket.close(linger=0)
    context.term()


def replayed(socket: zmq.Socket[bytes], start: int) -> list[tuple[int, bytes]]:
    """What replay answers from `start` on: (sequence, payload), up to its end mark."""
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    batches = []
    while True:
        empty, topic, sequence, payload = socket.recv_multipart()
        assert (empty, topic) == (b"", b"")
        number = int.from_bytes(sequence, "big", signed=True)
        if number == -1:
            assert payload == b""
            return batches
        batches.append((number, payload))


def completion(prompt: list[int], **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 1, **more}


def test_a_recorded_event_is_encoded_byte_for_byte() -> None:
    """The payload of a batch with a reset and a stored block is the recorded one, fields and order."""
    golden = Path(__file__).parents[1] / "golden" / "recordings" / "sha256_int_block32.json"
    payload = bytes.fromhex(json.loads(golden.read_text())[2][2])
    at, events, rank = msgspec.msgpack.decode(payload)
    stored = events[1]
    key = bytes(24) + stored["block_hashes"][0].to_bytes(8, "big")
    ours: list[CacheEvent] = [
        CacheCleared(),
        BlocksStored([key], None, stored["token_ids"], 32, None, None, [None]),
    ]
    assert EventEncoder(arrays=False, whole_hashes=False).encode(ours, rank, at) == payload


async def test_events_arrive_in_three_frames_and_can_be_replayed(start_engine: Start, sockets: Any) -> None:
    """A batch a step, numbered from 0; the DEALER gets from a start on what the subscriber got, and then -1."""
    engine = start_engine(*FAST)
    subscriber = sockets(zmq.SUB, engine.events[0])
    dealer = sockets(zmq.DEALER, engine.replay[0])
    live: list[tuple[int, bytes]] = []
    token = 100
    while not live:  # a subscription takes a moment to reach the publisher
        engine.post("/v1/completions", completion(list(range(token, token + 40))))
        token += 1
        if subscriber.poll(50):
            live.append(framed(subscriber))
    for _ in range(3):
        engine.post("/v1/completions", completion(list(range(token, token + 40))))
        token += 1
        live.append(framed(subscriber))
    batches = replayed(dealer, 0)
    assert [number for number, _ in batches] == list(range(len(batches)))
    assert batches[-len(live) :] == live
    assert replayed(dealer, live[-1][0]) == live[-1:]
    assert replayed(dealer, live[-1][0] + 1) == []


def framed(subscriber: zmq.Socket[bytes]) -> tuple[int, bytes]:
    topic, sequence, payload = subscriber.recv_multipart()
    assert topic == b""
    assert len(sequence) == 8
    at, events, rank = msgspec.msgpack.decode(payload)
    assert isinstance(at, float)
    assert rank == 0
    assert [event["type"] for event in events] == ["BlockStored"]
    return int.from_bytes(sequence, "big"), payload


def test_what_a_subscriber_hears_of_a_reset_comes_with_the_next_step(start_engine: Start, sockets: Any) -> None:
    """/reset_prefix_cache publishes nothing; the next request's first batch starts with AllBlocksCleared."""
    engine = start_engine(*FAST)
    dealer = sockets(zmq.DEALER, engine.replay[0])
    engine.post("/v1/completions", completion(list(range(100, 140))))
    engine.post("/reset_prefix_cache", b"")
    assert len(replayed(dealer, 0)) == 1
    engine.post("/v1/completions", completion(list(range(100, 140))))
    (_, payload) = replayed(dealer, 1)[0]
    assert [event["type"] for event in msgspec.msgpack.decode(payload)[1]] == ["AllBlocksCleared", "BlockStored"]


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("hashes", ["int", "bytes"])
def test_both_encodings_and_both_hash_forms_say_the_same(
    start_engine: Start, sockets: Any, encoding: str, hashes: str
) -> None:
    """Read by the rules of the format: maps by name, arrays by place; ints are the last 8 bytes of the digest."""
    engine = start_engine("--event-encoding", encoding, "--event-hashes", hashes, "--lora", "ad=/adapters/ad", *FAST)
    dealer = sockets(zmq.DEALER, engine.replay[0])
    body = completion(list(range(100, 140)), cache_salt="salt") | {"model": "ad"}
    engine.post("/v1/completions", body)
    (_, payload) = replayed(dealer, 0)[0]
    (event,) = msgspec.msgpack.decode(payload)[1]
    if encoding == "map":
        assert event["type"] == "BlockStored"
        values = [event[name] for name in STORED_FIELDS]
    else:
        assert event[0] == "BlockStored"
        values = event[1 : 1 + len(STORED_FIELDS)]
    found = dict(zip(STORED_FIELDS, values, strict=True))
    # The adapter is on each block, the salt on the first alone.
    if hashes == "bytes":
        assert [type(each) for each in found["block_hashes"]] == [bytes, bytes]
        assert {len(each) for each in found["block_hashes"]} == {32}
    else:
        assert all(0 <= each < 2**64 for each in found["block_hashes"])
    assert found | {"block_hashes": None} == {
        "block_hashes": None,
        "parent_block_hash": None,
        "token_ids": list(range(100, 132)),
        "block_size": 16,
        "lora_id": 1,
        "medium": "GPU",
        "lora_name": "ad",
        "extra_keys": [["ad", "salt"], ["ad"]],
        "group_idx": 0,
    }


def test_an_int_hash_is_the_end_of_the_whole_one() -> None:
    """Both forms name the same block, in removals too."""
    key = bytes(range(32))
    for event in (BlockRemoved(key), BlocksStored([key], key, [1], 1, None, None, [None])):
        whole = msgspec.msgpack.decode(EventEncoder(arrays=False, whole_hashes=True).encode([event], 0, 0.0))
        short = msgspec.msgpack.decode(EventEncoder(arrays=False, whole_hashes=False).encode([event], 0, 0.0))
        assert whole[1][0]["block_hashes"] == [key]
        assert short[1][0]["block_hashes"] == [int.from_bytes(key[24:], "big")]


def test_each_rank_publishes_on_sockets_of_its_own(start_engine: Start, sockets: Any) -> None:
    """Rank 1's batches carry its number and start at 0, whatever rank 0 did."""
    engine = start_engine("--data-parallel-size", "2", *FAST)
    for _ in range(2):
        engine.post("/v1/completions", completion(list(range(100, 140))), {"X-data-parallel-rank": "0"})
    engine.post("/v1/completions", completion(list(range(100, 140))), {"X-data-parallel-rank": "1"})
    for rank in (0, 1):
        batches = replayed(sockets(zmq.DEALER, engine.replay[rank]), 0)
        assert [number for number, _ in batches] == [0]
        assert msgspec.msgpack.decode(batches[0][1])[2] == rank


def test_sources_name_the_sockets_as_the_real_engine_does(start_engine: Start, golden: Path) -> None:
    """/kv_event_sources has the recorded fields, with this engine's addresses."""
    engine = start_engine(*FAST)
    wanted = json.loads((golden / "kv_event_sources.json").read_text())
    wanted["0"] |= {"endpoint": engine.events[0], "replay_endpoint": engine.replay[0]}
    assert json.loads(engine.send("GET", "/kv_event_sources")[2]) == wanted


def test_replay_can_be_off(start_engine: Start) -> None:
    """As in an engine that was not given a replay endpoint."""
    engine = start_engine("--replay-port", "off", *FAST)
    assert engine.replay == []
    assert json.loads(engine.send("GET", "/kv_event_sources")[2])["0"]["replay_endpoint"] is None


async def test_a_dropped_batch_is_missing_live_and_there_in_replay(
    sockets: Any, eventually: Callable[..., Awaitable[Any]]
) -> None:
    """With drop_events=2 subscribers get the odd numbers alone: a gap that replay can fill."""
    context = zmq.asyncio.Context()
    publisher = Publisher(context, 0, EventEncoder(arrays=False, whole_hashes=False), Faults(drop_events=2))
    try:
        publisher.bind("127.0.0.1", 0, None)
        assert publisher.events_endpoint is not None
        subscriber = sockets(zmq.SUB, publisher.events_endpoint)

        def heard() -> list[int]:
            publisher.publish([CacheCleared()])
            numbers = []
            while subscriber.poll(10):
                numbers.append(int.from_bytes(subscriber.recv_multipart()[1], "big"))
            return numbers

        first = await eventually(heard)
        publisher.publish([CacheCleared()])
        publisher.publish([CacheCleared()])
        later = int.from_bytes(subscriber.recv_multipart()[1], "big")
        assert all(number % 2 == 1 for number in [*first, later])
    finally:
        publisher.close()
        context.term()


async def test_the_oldest_batches_leave_the_buffer_without_a_sign(sockets: Any) -> None:
    """Replay from 0 starts with what is left of the last 10,000 batches."""
    context = zmq.asyncio.Context()
    publisher = Publisher(context, 0, EventEncoder(arrays=False, whole_hashes=False), Faults())
    try:
        publisher.bind("127.0.0.1", 0, None)
        for _ in range(BUFFERED_BATCHES + 5):
            publisher.publish([CacheCleared()])
        kept = publisher.buffered(0)
        assert len(kept) == BUFFERED_BATCHES
        assert kept[0][0] == 5
        assert [number for number, _ in publisher.buffered(BUFFERED_BATCHES + 3)] == [10_003, 10_004]
    finally:
        publisher.close()
        context.term()


async def test_replay_can_be_short(start_engine: Start, sockets: Any) -> None:
    """With the fault replay_batches the oldest are gone, without a sign but the first number of the answer."""
    engine = start_engine(*FAST, "--fault", "replay_batches=2")
    for token in range(5):
        engine.post("/v1/completions", completion(list(range(token, token + 40))))
    assert [number for number, _ in replayed(sockets(zmq.DEALER, engine.replay[0]), 0)] == [3, 4]
