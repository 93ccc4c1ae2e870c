"""The publisher of these tests speaks as the real engine does."""

from __future__ import annotations

import msgspec
import pytest
import zmq


@pytest.mark.parametrize(
    "name", ["eviction_int_block32", "hybrid_groups", "sha256_cbor_bytes_block16", "sha256_int_block32"]
)
async def test_it_sends_the_recorded_frames(name: str, recordings, publisher) -> None:  # type: ignore[no-untyped-def]
    """Publishing a recording's decoded events gives the recording's frames, byte for byte."""
    for topic, sequence, payload in recordings[name]:
        at_s, events, rank = msgspec.msgpack.decode(payload)
        publisher.rank = rank
        assert publisher.publish(events, at_s=at_s) == (topic, sequence.to_bytes(8, "big"), payload)


async def test_it_replays_as_the_engine_does(publisher, zmq_context) -> None:  # type: ignore[no-untyped-def]
    """A replay is an empty frame, topic, number, payload for each batch, and ends with -1."""
    payloads = [publisher.publish([{"type": "AllBlocksCleared"}])[2] for _ in range(3)]
    with zmq_context.socket(zmq.DEALER) as dealer:
        dealer.connect(publisher.replay_address)
        await dealer.send_multipart([b"", (1).to_bytes(8, "big")])
        answer = [await dealer.recv_multipart() for _ in range(3)]
    assert answer[:2] == [[b"", b"kv", i.to_bytes(8, "big"), payloads[i]] for i in (1, 2)]
    assert answer[2] == [b"", b"", b"\xff" * 8, b""]
