"""A publisher that speaks vLLM's frames, and a reader of what an agent left in Redis.

The publisher is held against the recordings of the real engine in test_agent_publisher.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import redis
import zmq
import zmq.asyncio

from replica.agent import reader as reader_module
from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.metrics import AgentMetrics
from replica.agent.private_state import Saved
from replica.agent.proof import SchemeProof
from replica.agent.reader import UnitReader
from replica.agent.unit import UnitState
from replica.agent.zmq_source import EventSource
from router.kv import wire
from router.kv.keys import Keys
from router.kv.wire import BlocksBatch, Change

Dump = set[tuple[int, int, int]]
"""(hash, tier, group) of every live block."""


class Publisher:
    """One rank of an engine: a PUB socket, and a ROUTER that replays what a buffer still holds."""

    def __init__(
        self, context: zmq.asyncio.Context, buffer_steps: int = 10_000, topic: bytes = b"kv", rank: int = 0
    ) -> None:
        self._context = context
        self.buffer_steps = buffer_steps
        self.topic = topic
        self.rank = rank
        self.events_address = "tcp://127.0.0.1:*"
        self.replay_address = "tcp://127.0.0.1:*"
        self.replays: list[int] = []
        self.started_s: float | None = None
        """What its metrics would tell of its start."""
        self.replay_topic = True
        """Whether replay answers carry the topic, as vLLM's of 2026 do; earlier ones and SGLang's have none."""
        self.replay_silent = False
        """Whether questions are left without an answer."""
        self.replay_answer: Callable[[list[tuple[int, bytes]]], list[tuple[int, bytes]]] = lambda batches: batches
        self.start()

    def start(self) -> None:
        """Begin a life: sequence 0 and an empty buffer, at the addresses of the life before."""
        self.sequence = 0
        self.buffer: list[tuple[int, bytes]] = []
        self._pub = self._bound(zmq.PUB, self.events_address)
        try:
            self._router = self._bound(zmq.ROUTER, self.replay_address)
        except zmq.ZMQError:
            self._pub.close(linger=0)
            raise
        self.events_address = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._plain = zmq.Socket.shadow(self._pub.underlying)
        self._task = asyncio.ensure_future(self._serve())

    def _bound(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        try:
            socket.bind(address)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return socket

    async def stop(self) -> None:
        """Die: both sockets close."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._pub.close(linger=0)
        self._router.close(linger=0)

    async def restart(self) -> None:
        """Die, and begin another life at the same addresses."""
        await self.stop()
        async with asyncio.timeout(5):
            while True:
                try:
                    self.start()
                    return
                except zmq.ZMQError:  # ZMQ lets go of an address some time after the socket was closed
                    await asyncio.sleep(0.01)

    def publish(self, events: list[Any], lose: bool = False, at_s: float | None = None) -> tuple[bytes, bytes, bytes]:
        """Publish a batch; with `lose` it is only in the replay buffer, as for a subscriber that was too slow."""
        batch = [time.time() if at_s is None else at_s, events, self.rank]
        return self.publish_payload(msgspec.msgpack.encode(batch), lose)

    def publish_payload(self, payload: bytes, lose: bool = False) -> tuple[bytes, bytes, bytes]:
        """Publish bytes as they are, under the next number."""
        frames = (self.topic, self.sequence.to_bytes(8, "big"), payload)
        self.buffer = [*self.buffer, (self.sequence, payload)][-self.buffer_steps :]
        self.sequence += 1
        if not lose:
            self.send(frames)
        return frames

    def send(self, frames: tuple[bytes, ...]) -> None:
        """Send frames outside any order."""
        self._plain.send_multipart(frames)

    async def _serve(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.replays.append(first)
            if self.replay_silent:
                continue
            for sequence, payload in self.replay_answer([b for b in self.buffer if b[0] >= first]):
                await self._answer(client, self.topic, sequence, payload)
            await self._answer(client, b"", -1, b"")

    async def _answer(self, client: bytes, topic: bytes, sequence: int, payload: bytes) -> None:
        head = [client, b"", topic] if self.replay_topic else [client, b""]
        await self._router.send_multipart([*head, sequence.to_bytes(8, "big", signed=sequence < 0), payload])


@pytest.fixture
async def zmq_context() -> AsyncIterator[zmq.asyncio.Context]:
    """A ZMQ context that is gone after the test, with all its sockets."""
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def new_publisher(zmq_context: zmq.asyncio.Context) -> AsyncIterator[Callable[[int], Publisher]]:
    """Make publishers on free ports, one for each rank."""
    made: list[Publisher] = []

    def make(rank: int) -> Publisher:
        made.append(Publisher(zmq_context, rank=rank))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture
async def publisher(new_publisher: Callable[[int], Publisher]) -> Publisher:
    """A publisher on free ports."""
    return new_publisher(0)


class Events:
    """Makes events in the form of 0.32."""

    cleared: ClassVar[dict[str, Any]] = {"type": "AllBlocksCleared"}

    @staticmethod
    def stored(
        hashes: list[Any], parent: Any = None, tokens: list[int] | None = None, size: int = 16, **more: Any
    ) -> dict[str, Any]:
        """Return a BlockStored."""
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": [0] * (size * len(hashes)) if tokens is None else tokens,
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * len(hashes),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
            **more,
        }

    @staticmethod
    def removed(hashes: list[Any], **more: Any) -> dict[str, Any]:
        """Return a BlockRemoved."""
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0, **more}


@pytest.fixture(scope="session")
def events() -> type[Events]:
    """Makes events in the form of 0.32."""
    return Events


class Mirror:
    """What a router would know of a unit, read from Redis by the rules of the wire format."""

    def __init__(self, client: redis.Redis, keys: Keys | None = None) -> None:
        self.client = client
        self.keys = keys or Keys()

    def messages(self, unit: str) -> list[wire.Message]:
        """Return every message of the unit that its lane still holds."""
        entries = self.client.xrange(self.keys.stream_of(unit))
        found = [wire.decode(fields[b"d"]) for _, fields in entries]
        return [message for message in found if message is not None and message.unit == unit]

    def snapshot(self, unit: str) -> wire.Snapshot | None:
        """Return the unit's snapshot."""
        name = self.client.get(self.keys.snapshot_pointer(unit))
        if name is None:
            return None
        return wire.decode_chunks(self.client.lrange(self.keys.snapshot(unit, name.decode()), 0, -1))

    def dump(self, unit: str) -> Dump | None:
        """Return the live blocks by snapshot and stream; None where there is no snapshot."""
        snapshot = self.snapshot(unit)
        if snapshot is None:
            return None
        live: Dump = {(h, tier, group) for tier, group, _, hashes in snapshot.layers for h in hashes}
        position = snapshot.sequence
        for _, fields in self.client.xrange(self.keys.stream_of(unit), min=f"({snapshot.stream_id}"):
            batch = wire.decode(fields[b"d"])
            if not isinstance(batch, BlocksBatch) or (batch.unit, batch.epoch) != (unit, snapshot.epoch):
                continue
            if batch.sequence <= position:
                continue
            assert batch.sequence == position + 1, "a batch is missing in the stream"
            position = batch.sequence
            for change in batch.changes:
                blocks = {(h, change.tier, change.group) for h in change.hashes}
                if change.op == "stored":
                    live |= blocks
                elif change.op == "removed":
                    live -= blocks
                else:
                    live.clear()
        return live


@pytest.fixture
def mirror(redis_url: str) -> Iterator[Mirror]:
    """A reader of an empty Valkey."""
    with redis.Redis.from_url(redis_url) as client:
        yield Mirror(client)


@pytest.fixture(scope="session")
def recordings(golden: Path) -> dict[str, list[tuple[bytes, int, bytes]]]:
    """Frames of the real engine (topic, sequence, payload) by the name of the recording."""
    return {
        path.stem: [
            (bytes.fromhex(topic), int(sequence, 16), bytes.fromhex(payload))
            for topic, sequence, payload in json.loads(path.read_text())
        ]
        for path in (golden / "recordings").glob("*.json")
    }


class Attached:
    """A reader in operation, and what it told."""

    def __init__(self, publisher: Any, context: Any, replay: bool = True, left: Attached | None = None) -> None:
        self.unit = UnitState("r0/0", VllmAdapter(), SchemeProof("none", 16, None), None)
        self.unit.engine_started_s = publisher.started_s
        if left is not None:
            saved = left.unit.saved("http://engine")
            assert saved is not None
            self.unit.offer(msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=Saved))
        self.source = EventSource(context, publisher.events_address, publisher.replay_address if replay else None)
        self.told: list[Change] = []
        self.epochs = 0
        self.reader = UnitReader(
            self.unit,
            self.source,
            lambda: SchemeProof("none", 16, None),
            self._publish,
            self._begin_epoch,
            AgentMetrics(),
        )
        self.task = asyncio.create_task(self.reader.run())

    def _publish(self, changes: Sequence[Change], received_s: float) -> None:
        self.told += changes

    def _begin_epoch(self) -> None:
        self.epochs += 1

    async def subscribed(self, publisher: Any) -> None:
        """Wait until what is published arrives: a subscription takes hold some time after the connection."""
        async with asyncio.timeout(10):
            await self.reader.attached.wait()
            while not self.source.malformed:
                publisher.send((b"no frame",))
                await asyncio.sleep(0.005)

    def live(self) -> set[int]:
        """Hashes that the unit holds."""
        return {h for *_, hashes in self.unit.layers() for h in hashes}

    async def stop(self) -> None:
        """End it; once is enough."""
        if not self.task.done():
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.source.close()


@pytest.fixture
async def attach(publisher, zmq_context, monkeypatch) -> AsyncIterator[Any]:  # type: ignore[no-untyped-def]
    """Attach readers to the publisher; replays that nobody answers are given up soon."""
    monkeypatch.setattr(reader_module, "REPLAY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(reader_module, "IDLE_CHECK_S", 0.3)
    running: list[Attached] = []

    async def start(replay: bool = True, left: Attached | None = None, to: Publisher | None = None) -> Attached:
        one = Attached(to or publisher, zmq_context, replay, left)
        running.append(one)
        await one.subscribed(to or publisher)
        return one

    yield start
    for one in running:
        await one.stop()


class Process:
    """A `warmroute` command in operation, and its ready line."""

    def __init__(
        self, process: asyncio.subprocess.Process, ready: dict[str, Any], environment: dict[str, str] | None = None
    ) -> None:
        self.process = process
        self.environment = environment or {}
        self.ready = ready

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(10):
            return await self.process.wait()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    """Start `warmroute` commands; all are killed after the test. What they keep, they keep in the test's folder."""
    running: list[Process] = []

    async def run(*arguments: str, **environment: str) -> Process:
        environment = {**os.environ, "TMPDIR": str(tmp_path), **environment}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from router.cli import main; sys.exit(main())",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
        )
        running.append(Process(process, {}, environment))
        assert process.stdout is not None
        async with asyncio.timeout(20):
            running[-1].ready = json.loads(await process.stdout.readline())
        return running[-1]

    yield run
    for one in running:
        with contextlib.suppress(ProcessLookupError):
            one.process.kill()
        await one.process.wait()
