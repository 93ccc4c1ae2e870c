"""Real sockets for the data plane: engines that do what a test says, clients that send any bytes, the real core."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from router.config import RouterConfig
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.proxy.data_plane import DataPlane
from tests.proxy.records import JsonReader, Notes

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
CHAT = "/v1/chat/completions"


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the router runs on."""
    return {"uvloop": uvloop.new_event_loop}


def chat_body(text: str = "hello there", *, stream: bool = False, model: str | None = "tiny", pad: int = 0) -> bytes:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text + " " * pad}], "stream": stream}
    if model is not None:
        body["model"] = model
    return json.dumps(body).encode()


def post(body: bytes, path: str = CHAT, headers: Iterable[str] = (), version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: router", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def get(path: str, headers: Iterable[str] = (), method: str = "GET") -> bytes:
    return ("\r\n".join([f"{method} {path} HTTP/1.1", "Host: router", *headers]) + "\r\n\r\n").encode("latin-1")


def ok(body: bytes = b'{"ok":true}', head: bytes = b"content-type: application/json\r\n") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"content-length: %d\r\n\r\n" % len(body) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class Headed:
    headers: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name: str) -> str:
        (value,) = self.all(name)
        return value


@dataclass
class Answer(Headed):
    """What a client read. `body` is decoded, `raw` is not; `ended` tells whether its framing was complete."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    raw: bytes
    ended: bool

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class Client:
    """A raw TCP client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def half_close(self) -> None:
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def closed(self) -> bool:
        """Wait until the router has closed; False when it sends something first."""
        try:
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        except ConnectionError:
            return True

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        self.send(data)
        return await self.answer(bodiless=bodiless)

    async def head(self, *, skip_interim: bool = True) -> tuple[int, list[tuple[str, str]]]:
        while True:
            text = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
            first, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
            status = int(first.split(" ")[1])
            if status >= 200 or not skip_interim:
                pairs = [line.partition(":") for line in lines]
                return status, [(name, value.strip()) for name, _, value in pairs]

    async def answer(self, *, bodiless: bool = False) -> Answer:
        status, headers = await self.head()
        answer = Answer(status, headers, b"", b"", ended=True)
        lower = {name.lower(): value for name, value in headers}
        if bodiless or status in (204, 304):
            return answer
        try:
            if "transfer-encoding" in lower:
                assert "content-length" not in lower
                await self._chunks(answer)
            elif "content-length" in lower:
                length = int(lower["content-length"])
                answer.body = answer.raw = await asyncio.wait_for(self.reader.readexactly(length), 10)
            else:
                answer.body = answer.raw = await asyncio.wait_for(self.reader.read(), 10)
        except asyncio.IncompleteReadError as error:
            answer.raw += error.partial
            answer.body += error.partial
            answer.ended = False
        except ConnectionError:
            answer.ended = False
        return answer

    async def _chunks(self, answer: Answer) -> None:
        while True:
            line = await asyncio.wait_for(self.reader.readline(), 10)
            answer.raw += line
            if not line.endswith(b"\n"):
                answer.ended = False
                return
            size = int(line.split(b";")[0], 16)
            data = await asyncio.wait_for(self.reader.readexactly(size + 2), 10)
            answer.raw += data
            if size == 0:
                return
            answer.body += data[:-2]


@dataclass
class Asked(Headed):
    """A request as an engine received it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes


Behaviour = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Engine:
    """A TCP server that reads whole requests and then does what `behave` says."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    behave: Behaviour | None = None
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**26)
        self.port = self.server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Stop listening: connections are refused from now on."""
        if self.server is not None:
            self.server.close()
        for task in list(self.tasks):
            task.cancel()
        self.server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while True:
                asked = await self._read(reader)
                self.asked.append(asked)
                if self.behave is None:
                    writer.write(ok())
                    continue
                behaving = asyncio.ensure_future(self.behave(asked, writer))
                try:
                    # Gone when the router closes, even while the behaviour sleeps.
                    gone = asyncio.ensure_future(self._gone(reader))
                    await asyncio.wait({behaving, gone}, return_when=asyncio.FIRST_COMPLETED)
                    gone.cancel()
                    await asyncio.wait({gone})  # two readers of one stream are not allowed
                    if not behaving.done():
                        return
                    behaving.result()
                finally:
                    behaving.cancel()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.tasks.discard(task)
            writer.transport.abort()

    async def _gone(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            assert await reader.read(1) == b"", "the router sent more than the request"

    async def _read(self, reader: asyncio.StreamReader) -> Asked:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (each.partition(":") for each in lines)]
        lower = {name.lower(): value for name, value in headers}
        assert "transfer-encoding" not in lower
        return Asked(line, headers, await reader.readexactly(int(lower.get("content-length", "0"))))


class Harness:
    """A data plane over real sockets, with the real fleet and placer."""

    def __init__(self, plane: DataPlane, fleet: Fleet, notes: Notes, reader: JsonReader, port: int) -> None:
        self.plane = plane
        self.fleet = fleet
        self.notes = notes
        self.reader = reader
        self.port = port
        self.clients: list[Client] = []

    def announce(self, engine: Engine, replica_id: str, ranks: int = 1, models: tuple[str, ...] = ("tiny",)) -> None:
        units = tuple(UnitFacts(f"{replica_id}/{r}", r, SCHEME, Trust.APPROXIMATE, 1_000) for r in range(ranks))
        served = tuple(ServedModel(name, f"/models/{name}", None, 4_096) for name in models)
        self.fleet.announce(ReplicaFacts(replica_id, engine.url, "static", served, units), time.monotonic())

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**26))
        self.clients.append(client)
        return client

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        return await (await self.client()).ask(data, bodiless=bodiless)

    @property
    def in_flight(self) -> int:
        return sum(unit.in_flight.requests for unit in self.fleet.units.values())

    def assert_accounted(self) -> None:
        assert self.in_flight == 0
        assert self.notes.accepted_count == len(self.notes.outcomes)
        assert self.plane.door.budget.used_bytes == 0
        assert not self.plane.forwarder.running


@pytest.fixture
async def engine() -> AsyncIterator[Callable[..., Awaitable[Engine]]]:
    """`await engine(behave)`: a running engine; without `behave` it answers 200 to all."""
    engines: list[Engine] = []

    async def make(behave: Behaviour | None = None) -> Engine:
        engines.append(Engine(behave=behave))
        await engines[-1].start()
        return engines[-1]

    yield make
    for made in engines:
        made.refuse()


@pytest.fixture
async def harness() -> AsyncIterator[Callable[..., Awaitable[Harness]]]:
    """`await harness(engine, ..., limits={...})`: a data plane in front of these engines, named r0, r1 and so on."""
    made: list[Harness] = []

    async def make(*engines: Engine, admin_handoff: Any = None, remote: Any = None, **settings: Any) -> Harness:
        least = {"models": [{"name": "tiny"}], "replicas": [{"url": "http://127.0.0.1:1"}], "listen": "127.0.0.1:0"}
        config = RouterConfig.model_validate(least | settings)
        retry, limits = config.retry, config.limits
        fleet = Fleet(eject_after=retry.eject_after, eject_s=retry.eject_s, max_in_flight=limits.max_in_flight)
        index = PrefixIndex()
        placer = Placer(
            fleet, index, ExpectedBlocks(), ApproximateMemory(index), config.placement, random.Random(1), time.time
        )
        notes, reader = Notes(), JsonReader()
        plane = DataPlane(config, reader, placer, fleet, notes, admin_handoff, remote=remote)
        (url,) = await plane.start()
        item = Harness(plane, fleet, notes, reader, int(url.rpartition(":")[2]))
        for number, each in enumerate(engines):
            item.announce(each, f"r{number}")
        made.append(item)
        return item

    yield make
    for item in made:
        for client in item.clients:
            client.writer.transport.abort()
        await item.plane.close()


@pytest.fixture
def wire() -> SimpleNamespace:
    """Makers of requests and answers (tests can't import a conftest)."""
    return SimpleNamespace(chat_body=chat_body, post=post, get=get, ok=ok, chunk=chunk, sse_head=SSE_HEAD)
