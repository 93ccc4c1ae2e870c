"""What one turn of the loop writes goes out together, in order, and never to the wrong one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from router.proxy.engine_connection import EngineConnection, Failure
from router.proxy.turn import MANY, TOGETHER, Turn


class Holder:
    def __init__(self) -> None:
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1


class Sent(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.data += data

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class Sink:
    def __init__(self) -> None:
        self.failures: list[Failure] = []

    def answer_failed(self, failure: Failure) -> None:
        self.failures.append(failure)


async def test_who_is_alone_does_not_wait_and_streams_make_nobody_wait(harness, engine, wire, eventually) -> None:
    """Only requests without an answer yet count as many: with any number of streams that go on, nothing is held."""

    async def begin(asked, writer) -> None:
        writer.write(wire.sse_head + wire.chunk(b"data: a\n\n"))
        await asyncio.sleep(30)

    item = await harness(await engine(begin))
    turn = item.plane.turn
    assert turn.expecting == 0
    for _ in range(MANY):
        client = await item.client()
        client.send(wire.post(wire.chat_body(stream=True)))
        await client.head()
    assert (turn.expecting, len(item.plane.forwarder.running)) == (0, MANY)
    for client in item.clients:
        client.reset()
    await eventually(lambda: not item.plane.forwarder.running)
    assert turn.expecting == 0


async def test_one_that_fails_holds_up_no_other() -> None:
    """The others are flushed all the same."""

    class Failing(Holder):
        def flush(self) -> None:
            raise RuntimeError("closed")

    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    turn, holders = Turn(loop), [Holder(), Failing(), Holder(), Holder()]
    for holder in holders:
        turn.hold(holder)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [each.flushed for each in holders] == [1, 0, 1, 1]
    assert len(told) == 1


async def test_what_is_held_goes_out_at_the_turns_end_or_when_there_is_enough_of_it() -> None:
    """Each is flushed once; so many at once at most wait for the end."""
    turn = Turn(asyncio.get_running_loop())
    holders = [Holder() for _ in range(TOGETHER + 2)]
    for holder in holders:
        turn.hold(holder)
    assert [each.flushed for each in holders] == [1] * TOGETHER + [0, 0]
    await asyncio.sleep(0)
    assert [each.flushed for each in holders] == [1] * (TOGETHER + 2)


def held_request() -> tuple[EngineConnection, Sent, Sink]:
    connection = EngineConnection(
        SimpleNamespace(connection_closed=lambda _: None, connection_idle=lambda _: None),
        turn := Turn(asyncio.get_running_loop()),
    )
    turn.expecting = MANY
    transport, sink = Sent(), Sink()
    connection.connection_made(transport)
    connection.send(sink, b"head", b"body", bodiless=False)
    assert transport.data == b""
    return connection, transport, sink


async def test_an_engine_that_speaks_before_a_held_request_left_is_not_believed() -> None:
    """What it says would be taken for the answer to a request that it never saw."""
    connection, transport, sink = held_request()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")
    assert sink.failures == [Failure.NOTHING_RECEIVED]
    await asyncio.sleep(0)
    assert (transport.data, transport.aborted) == (b"", True)


async def test_a_held_request_is_not_written_to_a_connection_that_is_gone() -> None:
    """Its client left, or the engine closed, before the turn's end."""
    connection, transport, sink = held_request()
    connection.abort()
    await asyncio.sleep(0)
    assert (transport.data, sink.failures) == (b"", [])
    connection, transport, sink = held_request()
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert (transport.data, sink.failures) == (b"", [Failure.NOTHING_RECEIVED])


async def test_many_at_once_get_each_its_own_answer(harness, engine, wire) -> None:
    """More connections than are held together, several requests on each, some in one segment: none mixed up."""

    async def echo(asked, writer) -> None:
        writer.write(wire.ok(asked.body))

    item = await harness(await engine(echo), await engine(echo))

    async def talk(number: int) -> None:
        client = await item.client()
        for turn in range(4):
            bodies = [wire.chat_body(f"{number}/{turn}/{each}") for each in range(1 + (turn == 3))]
            client.send(b"".join(map(wire.post, bodies)))
            for body in bodies:
                answer = await client.answer()
                assert (answer.status, answer.body) == (200, body)

    await asyncio.gather(*map(talk, range(40)))
    item.assert_accounted()
    assert item.plane.turn.expecting == 0
    assert len(item.notes.outcomes) == 200


async def test_clients_that_finish_sending_while_many_run_get_their_answers(harness, engine, wire) -> None:
    """A held answer is written before the connection closes."""
    item = await harness(await engine(), abort_on_half_close=False)

    async def talk() -> bytes:
        client = await item.client()
        client.send(wire.post(wire.chat_body()))
        await client.answer()
        client.send(wire.post(wire.chat_body()))
        client.half_close()
        answer = await client.answer()
        assert await client.closed()
        return answer.body

    assert await asyncio.gather(*(talk() for _ in range(40))) == [b'{"ok":true}'] * 40
    item.assert_accounted()
