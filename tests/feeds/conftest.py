"""A lane's writer, a TCP relay before Redis, small engines that answer probes, and a running feed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from redis.asyncio import Redis

from router.config import RouterConfig
from router.config_file import parse
from router.feeds import redis_feed, watch
from router.feeds.feeds import Feeds
from router.fleet.fleet import Fleet
from router.index.prefix_index import PrefixIndex
from router.kv import registration as reg
from router.kv.keys import Keys
from router.kv.wire import BlocksBatch, Change, Heartbeat, Snapshot, StateChange, encode
from router.telemetry.metrics import Metrics
from router.texts import ModelTexts


class Writer:
    """Writes what an agent writes for one unit: lease, lane, snapshot, epoch."""

    def __init__(self, redis: Redis, unit: str, epoch: int = 1, secret: bytes | None = None) -> None:
        self.redis, self.unit, self.epoch, self.sequence, self.secret = redis, unit, epoch, 0, secret
        self.keys = Keys()

    def registration(self, **facts: Any) -> reg.Registration:
        """A lease's content; `facts` override it."""
        values: dict[str, Any] = {
            "unit": self.unit,
            "replica_id": self.unit.partition("/")[0],
            "url": "http://127.0.0.1:9",
            "models": [reg.RegisteredModel("tiny", "tiny")],
            "algorithm": "sha256_cbor",
            "block_size": 16,
            "num_blocks": 1000,
            "trust": "exact",
            "epoch": self.epoch,
        }
        return reg.Registration(**{**values, **facts})

    async def register(self, **facts: Any) -> None:
        """Write fence, lease and registry entry; a life that begins has its snapshot of nothing first."""
        await self.redis.set(self.keys.epoch(self.unit), f"{self.epoch} {self.sequence}")
        if self.sequence == 0:
            await self.snapshot([])
        await self.lease(**facts)

    async def lease(self, **facts: Any) -> None:
        """Write lease and registry entry alone."""
        await self.redis.set(self.keys.lease(self.unit), reg.encode(self.registration(**facts), self.secret))
        await self.redis.zadd(self.keys.registry, {self.unit: int((await self.redis.time())[0])})

    async def unregister(self) -> None:
        """The lease ran out."""
        await self.redis.delete(self.keys.lease(self.unit))

    async def add(self, message: Any) -> str:
        """Append to the lane."""
        entry = await self.redis.xadd(self.keys.stream_of(self.unit), {"d": encode(message)})
        return entry.decode()

    async def batch(self, *changes: Change, skip: int = 0) -> str:
        """Publish the next batch; `skip` numbers are left out before it."""
        self.sequence += 1 + skip
        return await self.add(BlocksBatch(self.unit, self.epoch, self.sequence, changes))

    async def store(self, *hashes: int, skip: int = 0, tier: int = 0, group: int = 0) -> str:
        """Publish stored blocks."""
        return await self.batch(Change("stored", tier, group, 0, hashes), skip=skip)

    async def heartbeat(self, running: int | None = 0, waiting: int | None = 0, usage: float | None = 0.0) -> None:
        """Publish load."""
        await self.add(Heartbeat(self.unit, self.epoch, self.sequence, running, waiting, usage))

    async def state(self, state: Any) -> None:
        """Publish a state."""
        await self.add(StateChange(self.unit, self.epoch, state))

    async def retire(self) -> None:
        """Say goodbye as an agent does: the lease goes, the lane tells."""
        await self.unregister()
        await self.state("gone")

    async def snapshot(self, hashes: list[int], stream_id: str = "0-0", max_bytes: int = 128 * 1024) -> None:
        """Write a snapshot of the present sequence and point to it."""
        snapshot = Snapshot(self.unit, self.epoch, self.sequence, stream_id, [(0, 0, 0, hashes)])
        name = f"{self.epoch}-{self.sequence}"
        for chunk in snapshot.encode_chunks(max_bytes):
            await self.redis.rpush(self.keys.snapshot(self.unit, name), chunk)
        await self.redis.set(self.keys.snapshot_pointer(self.unit), name)


class Relay:
    """A TCP relay that can be cut (reset), made a black hole, and restored."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._refuse = False
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._refuse = True
        for writer in list(self._open):
            writer.transport.abort()

    def black_hole(self) -> None:
        """Accept, and pass nothing on."""
        self._refuse = False
        self._flow.clear()

    def restore(self) -> None:
        """Pass everything on again."""
        self._refuse = False
        self._flow.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuse:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._open -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flow.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@dataclass
class Engine:
    """What answers probes: no engine, only its health, model list and metrics page."""

    healthy: bool = True
    hangs: bool = False
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "tiny", "root": "tiny", "parent": None}])
    metrics: str = ""
    health_asked: int = 0
    url: str = ""

    async def health(self, request: web.Request) -> web.Response:
        self.health_asked += 1
        if self.hangs:
            await asyncio.sleep(60)
        return web.Response(status=200 if self.healthy else 503)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics)


@pytest.fixture
async def engines() -> AsyncIterator[Callable[..., Any]]:
    """`await engines(metrics=...)`: an engine's probe endpoints on a port of their own."""
    runners: list[web.AppRunner] = []

    async def start(**settings: Any) -> Engine:
        engine = Engine(**settings)
        app = web.Application()
        app.router.add_get("/health", engine.health)
        app.router.add_get("/v1/models", engine.list_models)
        app.router.add_get("/metrics", engine.page)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return engine

    yield start
    for runner in runners:
        await runner.cleanup()


@dataclass
class Running:
    """A router's feeds and what they feed."""

    fleet: Fleet
    index: PrefixIndex
    metrics: Metrics
    feeds: Feeds
    task: asyncio.Task[None]
    texts: ModelTexts

    def held(self, unit: str) -> set[int]:
        """Hashes that the index knows of a unit."""
        found = self.fleet.unit(unit)
        return {block for block, _, _ in self.index.dump(found.slot)} if found is not None else set()

    def value(self, name: str, **labels: str) -> float:
        """A metric's value; 0 where there is no series."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of leases and of probes come four times as often: what is waited for is their number, not the time."""
    monkeypatch.setattr(redis_feed, "ROUND_S", 0.25)
    monkeypatch.setattr(watch, "PROBE_EACH_S", 0.25)


@pytest.fixture
async def run_feeds() -> AsyncIterator[Callable[..., Running]]:
    """`run_feeds(redis=url, lease_s=..., replicas=[...])`: feeds as in a router, running."""
    running: list[Running] = []

    def start(lease_s: float = 10.0, probe_timeout_s: float = 0.3, **settings: Any) -> Running:
        data = {"listen": "127.0.0.1:0", "models": [{"name": "tiny"}], **settings}
        config: RouterConfig = parse(data, {})
        index = PrefixIndex()
        fleet = Fleet(on_unit_withdrawn=lambda unit: index.clear(unit.slot))
        metrics = Metrics("test", config.paths, lambda name: fleet.base_model(name) is not None)
        texts = ModelTexts()
        feeds = Feeds(
            config,
            fleet,
            index,
            metrics,
            time.monotonic,
            lease_s=lease_s,
            probe_timeout_s=probe_timeout_s,
            texts=texts,
        )
        one = Running(fleet, index, metrics, feeds, asyncio.get_running_loop().create_task(feeds.run()), texts)
        running.append(one)
        return one

    yield start
    for one in running:
        one.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await one.task
        one.texts.close()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A client of the empty Valkey."""
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def relay(redis_url: str) -> AsyncIterator[Relay]:
    """A relay before Valkey: `redis://127.0.0.1:{relay.port}/0`."""
    parts = urlsplit(redis_url)
    one = Relay(parts.hostname or "", parts.port or 0)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
def writer(redis: Redis) -> Callable[..., Writer]:
    """`writer("r0/0")`: writes for one unit as its agent does."""
    return lambda unit, **facts: Writer(redis, unit, **facts)


class Stage:
    """Routers' feeds and agents' writers over one Valkey, and engines that answer the feeds' probes."""

    def __init__(self, redis: Redis, url: str, run_feeds: Any, engines: Any, eventually: Any) -> None:
        self.redis, self.url, self.eventually, self.engine = redis, url, eventually, engines
        self._run_feeds = run_feeds

    def router(self, **settings: Any) -> Running:
        """Run the feeds of one more router on this Valkey."""
        return self._run_feeds(**{"redis": self.url, **settings})

    def agent(self, unit: str = "r0/0", **facts: Any) -> Writer:
        """Return the writer of a unit."""
        return Writer(self.redis, unit, **facts)

    async def registered(self, unit: str = "r0/0", secret: str | None = None, **facts: Any) -> Writer:
        """Return the writer of a unit that is registered, with an engine that answers."""
        agent = self.agent(unit, secret=secret and secret.encode())
        await agent.register(url=(await self.engine()).url, **facts)
        return agent


@pytest.fixture
def stage(redis: Redis, redis_url: str, run_feeds: Any, engines: Any, eventually: Any) -> Stage:
    """See `Stage`."""
    return Stage(redis, redis_url, run_feeds, engines, eventually)


@pytest.fixture
def unused_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
