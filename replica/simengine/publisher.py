"""KV events on ZMQ, framed as vLLM frames them, with replay.

PUB sends `[topic, sequence, payload]`: an empty topic, the sequence as 8 bytes big-endian from 0, msgpack
`[time, [events], rank]`. ROUTER answers `[b"", start]` with every batch it still has from there on, as
`[b"", topic, sequence, payload]`, and a last one with sequence -1 and no payload.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from replica.simengine.core.events import BlockKey, BlockRemoved, BlocksStored, CacheEvent
from replica.simengine.faults import Faults

BUFFERED_BATCHES = 10_000
QUEUED_MESSAGES = 100_000
_END = (-1).to_bytes(8, "big", signed=True)
_LOW_64_BITS = 8


class _Stored(msgspec.Struct, tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: list[int] | list[bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", omit_defaults=True, gc=False):
    block_hashes: list[int] | list[bytes]
    medium: str | None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", omit_defaults=True, gc=False):
    pass


class _StoredArray(_Stored, tag="BlockStored", array_like=True, omit_defaults=True, gc=False):
    pass


class _RemovedArray(_Removed, tag="BlockRemoved", array_like=True, omit_defaults=True, gc=False):
    pass


class _ClearedArray(_Cleared, tag="AllBlocksCleared", array_like=True, omit_defaults=True, gc=False):
    pass


class EventEncoder:
    """Core events as payloads."""

    def __init__(self, *, arrays: bool, whole_hashes: bool) -> None:
        """Choose the form.

        Args:
            arrays: Events as arrays (releases before June 2026) and not as maps.
            whole_hashes: Hashes as their bytes, and not as the last 8 of them read big-endian.
        """
        self._stored = _StoredArray if arrays else _Stored
        self._removed = _RemovedArray if arrays else _Removed
        self._cleared = _ClearedArray if arrays else _Cleared
        self._whole = whole_hashes
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, events: list[CacheEvent], rank: int, at_unix_s: float) -> bytes:
        """Return one batch."""
        return self._encoder.encode([at_unix_s, [self._event(event) for event in events], rank])

    def _event(self, event: CacheEvent) -> object:
        if isinstance(event, BlocksStored):
            parent = None if event.parent is None else self._hash(event.parent)
            return self._stored(
                block_hashes=[self._hash(key) for key in event.keys],
                parent_block_hash=parent,
                token_ids=event.token_ids,
                block_size=event.block_size,
                lora_id=event.lora_id,
                medium="GPU",
                lora_name=event.lora_name,
                extra_keys=event.extra_keys,
                group_idx=0,
                kv_cache_spec_kind="full_attention",
            )
        if isinstance(event, BlockRemoved):
            return self._removed(block_hashes=[self._hash(event.key)], medium="GPU", group_idx=0)
        return self._cleared()

    def _hash(self, key: BlockKey) -> Any:
        return key if self._whole else int.from_bytes(key[-_LOW_64_BITS:], "big")


class Publisher:
    """The two sockets of one rank."""

    def __init__(self, context: zmq.asyncio.Context, rank: int, encoder: EventEncoder, faults: Faults) -> None:
        self._context = context
        self._rank = rank
        self._encoder = encoder
        self._faults = faults
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=faults.replay_batches or BUFFERED_BATCHES)
        self._sequence = 0
        self._events: zmq.Socket[bytes] | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self.events_endpoint: str | None = None
        self.replay_endpoint: str | None = None

    def bind(self, host: str, events_port: int | None, replay_port: int | None) -> None:
        """Open the sockets; a port of 0 is any free one, None leaves the socket out.

        Raises:
            OSError: A port can't be bound; its message names the address.
        """
        if events_port is not None:
            self._events = zmq.Socket(self._context, zmq.PUB)
            self._events.set_hwm(QUEUED_MESSAGES)
            self.events_endpoint = _bind(self._events, host, events_port)
        if replay_port is not None:
            self._replay = self._context.socket(zmq.ROUTER)
            self.replay_endpoint = _bind(self._replay, host, replay_port)

    def publish(self, events: list[CacheEvent]) -> None:
        """Send one step's events as the next batch."""
        if self._events is None:
            return
        sequence, self._sequence = self._sequence, self._sequence + 1
        payload = self._encoder.encode(events, self._rank, time.time())
        self._buffer.append((sequence, payload))
        if self._faults.drop_events and sequence % self._faults.drop_events == 0:
            return
        if self._faults.event_delay_s:
            asyncio.get_running_loop().call_later(self._faults.event_delay_s, self._send, sequence, payload)
        else:
            self._send(sequence, payload)

    def _send(self, sequence: int, payload: bytes) -> None:
        if self._events is not None:
            self._events.send_multipart([b"", sequence.to_bytes(8, "big"), payload], zmq.NOBLOCK)

    def buffered(self, first: int) -> list[tuple[int, bytes]]:
        """Return the batches that replay still has, from sequence `first` on."""
        return [(sequence, payload) for sequence, payload in self._buffer if sequence >= first]

    async def serve_replay(self) -> None:
        """Answer replay requests for ever."""
        if self._replay is None:
            return
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, start = frames
            first = int.from_bytes(start, "big")
            for sequence, payload in self.buffered(first):
                await self._replay.send_multipart([client, b"", b"", sequence.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([client, b"", b"", _END, b""])

    def source(self) -> dict[str, object]:
        """Return what /kv_event_sources says of this rank."""
        return {
            "enable_kv_cache_events": self.events_endpoint is not None,
            "publisher": "zmq" if self.events_endpoint else "null",
            "endpoint": self.events_endpoint or "tcp://*:5557",
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": BUFFERED_BATCHES,
            "hwm": QUEUED_MESSAGES,
            "max_queue_size": QUEUED_MESSAGES,
            "topic": "",
        }

    def close(self) -> None:
        """Close the sockets; what is not sent yet is dropped."""
        for socket in (self._events, self._replay):
            if socket is not None:
                socket.close(linger=0)
        self._events = self._replay = None


def _bind(socket: Any, host: str, port: int) -> str:
    address = "*" if host in ("0.0.0.0", "::", "*") else f"[{host}]" if ":" in host else host
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(f"tcp://{address}:{port}")
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"tcp://{address}:{port} can't be bound: {error}") from error
    bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return f"tcp://{address}:{bound.rsplit(':', 1)[1]}"
