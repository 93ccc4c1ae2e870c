"""Real servers of every kind: a Cluster, Sentinels, one server behind TLS; and agents that write to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import redis

from replica.agent import redis_link
from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.lane import Lane
from replica.agent.metrics import AgentMetrics
from replica.agent.proof import SchemeProof
from replica.agent.sink import UnitSink
from replica.agent.unit import UnitState
from router.kv import registration
from router.kv.keys import Keys
from router.tools.local_valkey import start_valkey
from router.tools.processes import Child, stop_all


class Node:
    """One server, which a test may kill, stop for a while, and start again."""

    def __init__(self, folder: Path, *options: str, file: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._options, self._file = folder, options, file
        self._child, url = self._start(None)
        self.port = urlsplit(url).port or 0
        self.client = redis.Redis(port=self.port, socket_timeout=10)

    def _start(self, port: int | None) -> tuple[Child, str]:
        return start_valkey(self.folder, port, self._options, self._file)

    def kill(self) -> None:
        """Kill -9."""
        self.client.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGKILL)
        stop_all([self._child])

    def start_again(self) -> None:
        """Start at the same address, empty but for what its files say. In the main thread: it dies with its thread."""
        self._child, _ = self._start(self.port)

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """Accept connections and answer nothing."""
        os.kill(self._child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._child.pid, signal.SIGCONT)

    def lines(self, command: str) -> dict[str, str]:
        """The answer to INFO-like commands, by name."""
        text = self.client.execute_command(*command.split())
        text = text.decode() if isinstance(text, bytes) else text
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line) if isinstance(text, str) else text


@pytest.fixture(scope="session")
def node_class() -> type[Node]:
    """What starts a server, for fixtures of more than one test."""
    return Node


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """`new_node("--option", ...)`: a server of the test's own."""
    nodes: list[Node] = []

    def start(*options: str, file: Path | None = None, folder: Path | None = None) -> Node:
        nodes.append(Node(folder or tmp_path / f"node{len(nodes)}", *options, file=file))
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()


class Writing:
    """An agent's writing side for one unit, as it is in operation."""

    def __init__(self, url: str, unit: str, at: str, lease_s: float, snapshot_s: float) -> None:
        self.client = redis_link.connect(url)
        self.unit = UnitState(unit, VllmAdapter(), SchemeProof("none", 16, None), None)
        self.metrics = AgentMetrics()
        lane = Lane(self.client, Keys(), unit, lease_s, snapshot_s)
        self.sink = UnitSink(self.unit, lane, lease_s, snapshot_s, redis_link.shown(url), self.metrics)
        self.task = asyncio.create_task(self.sink.run())
        self._beats = asyncio.create_task(self._beat())
        self._at, self._sequence = at, 0

    @property
    def live(self) -> set[int]:
        """Hashes of its live blocks."""
        return {one for _, _, _, hashes in self.unit.layers() for one in hashes}

    def store(self, *hashes: int) -> None:
        """The engine stored blocks."""
        self.say(
            {
                "type": "BlockStored",
                "block_hashes": list(hashes),
                "parent_block_hash": None,
                "token_ids": [0] * 16 * len(hashes),
                "block_size": 16,
            }
        )

    def remove(self, *hashes: int) -> None:
        """The engine evicted blocks."""
        self.say({"type": "BlockRemoved", "block_hashes": list(hashes)})

    def say(self, *events: Any, with_rank: bool = True) -> None:
        """The engine published a batch of these events."""
        payload = msgspec.msgpack.encode([time.time(), events, *([0] if with_rank else [])])
        self.sink.offer(self.unit.accept(self._sequence, payload), time.monotonic())
        self._sequence += 1

    async def ready(self) -> None:
        """Register, and wait until lease and snapshot are there."""
        self.sink.register(self._lease)
        async with asyncio.timeout(30):
            await self.sink.ready.wait()

    async def stop(self) -> None:
        """End as an agent does."""
        self.sink.end()
        for task in (self.task, self._beats):
            task.cancel()
        await asyncio.gather(self.task, self._beats, return_exceptions=True)
        await self.sink.close(1.0)
        await self.client.close()

    def _lease(self, epoch: int) -> bytes:
        models = [registration.RegisteredModel("tiny", "tiny")]
        return registration.encode(
            registration.Registration(
                unit=self.unit.unit_id,
                replica_id=self.unit.unit_id.partition("/")[0],
                url=self._at,
                models=models,
                algorithm="sha256_cbor",
                block_size=16,
                trust="exact",
                epoch=epoch,
            ),
            None,
        )

    async def _beat(self) -> None:
        while True:
            self.sink.report_load(None)
            await asyncio.sleep(0.2)


@pytest.fixture
async def agents() -> AsyncIterator[Callable[..., Any]]:
    """`await agents(url, ["r0/0"], engines=[...])`: agents that are registered, of these engines or of none."""
    running: list[Writing] = []

    async def start(
        url: str, units: list[str], lease_s: float = 10.0, snapshot_s: float = 30.0, engines: Sequence[str] = ()
    ) -> list[Writing]:
        ats = engines or [f"http://127.0.0.1:{9000 + len(running) + place}" for place in range(len(units))]
        made = [Writing(url, unit, at, lease_s, snapshot_s) for unit, at in zip(units, ats, strict=True)]
        running.extend(made)
        await asyncio.gather(*(one.ready() for one in made))
        return made

    yield start
    await asyncio.gather(*(one.stop() for one in running))
