"""The seam: a request from anywhere is forwarded, without a client's socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from router.proxy.exchange import Exchange, Framing, Request


class MemoryExchange(Exchange):
    """Keeps what it is told."""

    def __init__(self, request: Request, *, takes_chunked: bool = True) -> None:
        super().__init__(request)
        self._takes_chunked = takes_chunked
        self.told: list[str] = []
        self.body = b""
        self.status = 0
        self.framing = Framing.NONE
        self.over = asyncio.Event()

    @property
    def takes_chunked(self) -> bool:
        return self._takes_chunked

    def start(
        self,
        status: int,
        reason: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        framing: Framing,
        *,
        more: bool = False,
        lines: bytes = b"",
    ) -> None:
        self.told.append("start")
        self.status, self.framing = status, framing

    def write(self, data: bytes) -> None:
        self.body += data

    def end(self) -> None:
        self.told.append("end")
        self.over.set()

    def abort(self) -> None:
        self.told.append("abort")
        self.over.set()

    def hold_body(self, size_bytes: int) -> bool:
        return True

    def release_body(self) -> None:
        self.told.append("release")


def request(body: bytes) -> Request:
    path = "/v1/chat/completions"
    return Request("id-1", "POST", path.encode(), path, b"", [], "1.1", "", time.monotonic(), body, framed=True)


async def test_an_exchange_without_sockets_is_answered(harness, engine, wire) -> None:
    """The forwarder needs an Exchange alone: head, body, end, once each, and the body is released before the end."""
    one = await engine()
    item = await harness(one)
    exchange = MemoryExchange(request(wire.chat_body()))
    item.plane.forwarder.forward(exchange)
    await exchange.over.wait()
    assert (exchange.status, exchange.body, exchange.framing) == (200, b'{"ok":true}', Framing.LENGTH)
    assert exchange.told == ["start", "release", "end"]
    assert one.asked[0].body == wire.chat_body()
    item.assert_accounted()


async def test_a_carrier_without_chunked_coding_gets_plain_bytes(harness, engine, wire) -> None:
    """What the carrier can't frame as chunks comes decoded."""

    async def behave(asked, writer) -> None:
        writer.write(wire.sse_head + wire.chunk(b"data: a\n\n") + wire.chunk(b"data: b\n\n") + b"0\r\n\r\n")

    item = await harness(await engine(behave))
    exchange = MemoryExchange(request(wire.chat_body(stream=True)), takes_chunked=False)
    item.plane.forwarder.forward(exchange)
    await exchange.over.wait()
    assert (exchange.framing, exchange.body) == (Framing.PLAIN, b"data: a\n\ndata: b\n\n")
    item.assert_accounted()


async def test_back_pressure_reaches_the_engine(harness, engine, wire, eventually) -> None:
    """A carrier that pauses stops the engine's bytes; resuming lets all of them through."""
    total = 20_000_000

    async def behave(asked, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        for _ in range(200):
            writer.write(b"x" * 100_000)
            await writer.drain()

    item = await harness(await engine(behave))
    exchange = MemoryExchange(request(wire.chat_body()))
    item.plane.forwarder.forward(exchange)
    await eventually(lambda: exchange.body)
    assert exchange.listener is not None
    exchange.listener.writing_paused()
    seen = len(exchange.body)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(exchange.body) == seen < total
    exchange.listener.writing_resumed()
    await exchange.over.wait()
    assert len(exchange.body) == total
    item.assert_accounted()


async def test_leaving_ends_it_once(harness, engine, wire, eventually) -> None:
    """After client_left nothing is written, and it is accounted for once, even when told twice."""

    async def silent(asked, writer) -> None:
        await asyncio.sleep(30)

    one = await engine(silent)
    item = await harness(one)
    exchange = MemoryExchange(request(wire.chat_body()))
    item.plane.forwarder.forward(exchange)
    await eventually(lambda: one.asked)
    listener = exchange.listener
    assert listener is not None
    listener.client_left()
    listener.client_left()
    await eventually(lambda: one.open == 0)
    assert exchange.told == []
    assert len(item.notes.outcomes) == 1
    item.assert_accounted()
