"""The relay and what it does to event messages, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import zmq
import zmq.asyncio

from router.tools.chaos.frames import Mangler
from router.tools.chaos.relay import Relay


@pytest.fixture
async def relay_to() -> AsyncIterator[Callable[..., Any]]:
    """`await relay_to(port, mangler)`: a running relay and its port."""
    running: list[Relay] = []

    async def start(port: int, mangler: Mangler | None = None) -> tuple[Relay, int]:
        running.append(Relay(port, mangler))
        return running[-1], await running[-1].start()

    yield start
    for relay in running:
        await relay.close()


class Published:
    """A PUB socket, and a SUB socket that hears it through a relay."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.setsockopt(zmq.RECONNECT_IVL, 10)

    async def send(self, *numbers: int) -> None:
        for number in numbers:
            await self.pub.send_multipart([b"", number.to_bytes(8, "big"), b"x" * (number * 200)])

    async def receive(self) -> int:
        parts = await asyncio.wait_for(self.sub.recv_multipart(), 10)
        number = int.from_bytes(parts[1], "big")
        assert parts == [b"", number.to_bytes(8, "big"), b"x" * (number * 200)]
        return number

    async def heard(self) -> None:
        """Wait until a message comes through: the subscription took hold."""
        while True:
            await self.send(0)
            if await self.sub.poll(20):
                break
        while await self.sub.poll(50):
            await self.receive()

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
async def published() -> AsyncIterator[Published]:
    """The two sockets, not connected yet."""
    one = Published()
    yield one
    one.close()


async def through(published: Published, relay_to: Callable[..., Any]) -> tuple[Relay, Mangler]:
    """Connect the two by a relay."""
    mangler = Mangler()
    relay, port = await relay_to(published.port, mangler)
    published.sub.connect(f"tcp://127.0.0.1:{port}")
    await published.heard()
    return relay, mangler


async def test_messages_pass_whole_and_in_order(published: Published, relay_to: Callable[..., Any]) -> None:
    """Short ones and long ones, whose frames have a size of 8 bytes."""
    await through(published, relay_to)
    await published.send(*range(1, 400, 20))
    assert [await published.receive() for _ in range(20)] == list(range(1, 400, 20))


async def test_whole_messages_are_lost_doubled_and_reversed(published: Published, relay_to: Callable[..., Any]) -> None:
    """Each as often as it is asked for, and the connection stays what it is."""
    relay, mangler = await through(published, relay_to)
    mangler.drop = 2
    await published.send(1, 2, 3)
    assert await published.receive() == 3
    mangler.double = 1
    await published.send(4, 5)
    assert [await published.receive() for _ in range(3)] == [4, 4, 5]
    mangler.reverse = 3
    await published.send(6, 7, 8, 9)
    assert [await published.receive() for _ in range(4)] == [8, 7, 6, 9]
    mangler.reverse = 3
    await published.send(10, 11)
    while mangler.struck < 2 + 1 + 3 + 2:  # noqa: ASYNC110 - the relay tells nobody
        await asyncio.sleep(0.01)
    relay.send_held()
    assert [await published.receive() for _ in range(2)] == [11, 10]


async def test_a_subscriber_notices_that_it_was_cut(published: Published, relay_to: Callable[..., Any]) -> None:
    """After a reset it connects again and hears what comes then."""
    relay, _ = await through(published, relay_to)
    relay.end_connections(reset=True)
    await published.heard()
    await published.send(7)
    assert await published.receive() == 7


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


async def test_connections_are_stalled_refused_cut_and_reset(relay_to: Callable[..., Any]) -> None:
    """A stall holds everything and loses nothing; FIN and RST reach the client as what they are."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    relay, port = await relay_to(server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"one")
    assert await asyncio.wait_for(reader.readexactly(3), 10) == b"one"
    relay.stall(True)
    writer.write(b"two")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(3), 0.2)
    relay.stall(False)
    assert await asyncio.wait_for(reader.readexactly(3), 10) == b"two"
    relay.end_connections(reset=False)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"three")
    await asyncio.wait_for(reader.readexactly(5), 10)
    relay.end_connections(reset=True)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 10)
    writer.close()

    relay.refusing = True
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 10)
    writer.close()
    server.close()
