"""Reads an engine's whole event history through its replay socket and counts what it had to evict."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

TIMEOUT_MS = 5_000
END = -1


def evicted_blocks(replay_address: str) -> int:
    """Return how many blocks an engine has removed since its start.

    The replay keeps the last 10,000 batches, far more than a demo makes.

    Raises:
        TimeoutError: The engine did not answer within 5 s.
    """
    removed = 0
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(replay_address)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while socket.poll(TIMEOUT_MS):
            *_, sequence, payload = socket.recv_multipart()
            if int.from_bytes(sequence, "big", signed=True) == END:
                return removed
            removed += sum(_removed(event) for event in msgspec.msgpack.decode(payload)[1])
    raise TimeoutError(f"no answer from {replay_address}")


def _removed(event: Any) -> int:
    """Blocks of a BlockRemoved event, which is a map with a `type` or an array that begins with it; else 0."""
    if isinstance(event, dict):
        return len(event.get("block_hashes") or ()) if event.get("type") == "BlockRemoved" else 0
    return len(event[1]) if event and event[0] == "BlockRemoved" else 0
