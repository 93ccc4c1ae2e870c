"""A client that leaves stops the engine's work (PRX-02)."""

from __future__ import annotations

import asyncio
import time

import pytest

LEAVE = ["close", "reset"]


async def silent(asked, writer) -> None:
    await asyncio.sleep(30)


async def left(item, one, eventually, client, how) -> float:
    begun_s = time.monotonic()
    getattr(client, how)()
    await eventually(lambda: one.open == 0, timeout_s=2, what="the upstream connection is closed")
    return time.monotonic() - begun_s


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_before_the_answer_aborts_the_engine(harness, engine, wire, eventually, how) -> None:
    """(a) No head yet: the upstream connection is closed in about 100 ms, never pooled, and nobody is blamed."""
    one = await engine(silent)
    item = await harness(one)
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    await eventually(lambda: one.asked)
    assert await left(item, one, eventually, client, how) < 0.5
    assert item.plane.pool.open_count == 0
    assert item.notes.last.aborted
    assert item.notes.last.status is None
    assert item.fleet.replicas["r0"].failures_in_a_row == 0
    item.assert_accounted()


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_within_a_stream_aborts_the_engine(harness, engine, wire, eventually, how) -> None:
    """(b) After three events: closed soon after the next one meets a closed socket."""

    async def stream(asked, writer) -> None:
        writer.write(wire.sse_head)
        for _ in range(1_000):
            writer.write(wire.chunk(b"data: x\n\n"))
            await asyncio.sleep(0.03)

    one = await engine(stream)
    item = await harness(one)
    client = await item.client()
    client.send(wire.post(wire.chat_body(stream=True)))
    await client.head()
    await client.reader.readexactly(3 * len(wire.chunk(b"data: x\n\n")))
    assert await left(item, one, eventually, client, how) < 0.5
    assert item.plane.pool.open_count == 0
    assert item.notes.last.aborted
    assert item.notes.last.status == 200
    item.assert_accounted()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wait_s", [0, 0.15])
async def test_a_half_close_is_served(harness, engine, wire, stream, wait_s) -> None:
    """(c) A client that shuts down its sending side alone gets its whole answer, then the connection ends."""

    async def behave(asked, writer) -> None:
        await asyncio.sleep(wait_s)
        if not stream:
            writer.write(wire.ok())
            return
        writer.write(wire.sse_head)
        for _ in range(3):
            writer.write(wire.chunk(b"data: x\n\n"))
            await asyncio.sleep(0.03)
        writer.write(b"0\r\n\r\n")

    item = await harness(await engine(behave))
    client = await item.client()
    client.send(wire.post(wire.chat_body(stream=stream)))
    client.half_close()
    answer = await client.answer()
    assert answer.ended
    assert answer.body == (b"data: x\n\n" * 3 if stream else b'{"ok":true}')
    assert await client.closed()
    item.assert_accounted()


async def test_pipelined_requests_before_a_half_close_are_all_served(harness, engine, wire) -> None:
    """FIN after two requests: both are answered."""
    item = await harness(await engine())
    client = await item.client()
    client.send(wire.post(wire.chat_body()) * 2)
    client.half_close()
    assert [(await client.answer()).status for _ in range(2)] == [200, 200]
    assert await client.closed()


async def test_no_probe_for_http_1_0(harness, engine, wire) -> None:
    """An HTTP/1.0 client that half-closes is sent no 1xx, which it would not know."""

    async def behave(asked, writer) -> None:
        await asyncio.sleep(0.15)
        writer.write(wire.ok())

    item = await harness(await engine(behave))
    client = await item.client()
    client.send(wire.post(wire.chat_body(), version="1.0"))
    client.half_close()
    assert (await client.head(skip_interim=False))[0] == 200


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_while_uploading_opens_nothing(harness, engine, wire, eventually, how) -> None:
    """(e) A body that will never be complete reaches no engine, and its memory is free."""
    one = await engine()
    item = await harness(one)
    client = await item.client()
    client.send(wire.post(b"x" * 100_000)[:-10])
    await eventually(lambda: item.plane.door.budget.used_bytes)
    getattr(client, how)()
    await eventually(lambda: not item.plane.door.connections)
    assert one.connections == 0
    item.assert_accounted()


async def test_leaving_while_the_prompt_is_read_places_nothing(harness, engine, wire, eventually) -> None:
    """A long prompt is tokenised in a thread; when the client leaves meanwhile, nothing is placed or sent."""
    import threading

    one = await engine()
    item = await harness(one, limits={"inline_body_bytes": 0})
    go, reading = threading.Event(), threading.Event()
    read = item.reader.read

    def slow(path, body, drafted):
        reading.set()
        go.wait(10)
        return read(path, body)

    item.reader.read = slow
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    await eventually(reading.is_set)
    client.reset()
    await eventually(lambda: not item.plane.forwarder.running)
    go.set()
    await eventually(lambda: item.reader.reads)
    assert item.notes.decisions == []
    assert item.notes.last.aborted
    assert one.connections == 0
    item.assert_accounted()


async def test_leaving_while_connecting_gives_up(harness, engine, wire, eventually) -> None:
    """(d) A client that leaves while the router still connects: the attempt ends, nothing is sent."""
    import socket

    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    others = []
    for _ in range(3):  # fill the backlog, so that a further connection stays in SYN_SENT
        other = socket.socket()
        other.setblocking(False)
        other.connect_ex(full.getsockname())
        others.append(other)
    one = await engine()
    one_url_port = one.port
    one.port = full.getsockname()[1]
    item = await harness(one, timeouts={"connect_s": 20})
    one.port = one_url_port
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    await eventually(lambda: item.plane.pool._tasks)
    client.reset()
    await eventually(lambda: not item.plane.pool._tasks)
    assert item.notes.last.aborted
    assert item.fleet.replicas["r0"].failures_in_a_row == 0
    item.assert_accounted()
    for each in (full, *others):
        each.close()


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_behind_pipelined_bytes_aborts_the_engine(harness, engine, wire, eventually, how) -> None:
    """Bytes that are not read hide a FIN: with more pipelined than is kept, leaving is still seen within a second."""
    one = await engine(silent)
    item = await harness(one)
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    await eventually(lambda: one.asked)
    client.send(wire.post(wire.chat_body(pad=4_000_000)))
    assert await left(item, one, eventually, client, how) < 1.2
    assert item.notes.last.aborted
    item.assert_accounted()


async def test_what_was_pipelined_and_dropped_ends_the_connection_after_the_answer(harness, engine, wire) -> None:
    """The request that runs is answered as a whole, and no other one is taken for its follower."""

    async def behave(asked, writer) -> None:
        await asyncio.sleep(1)
        writer.write(wire.ok())

    one = await engine(behave)
    item = await harness(one)
    client = await item.client()
    client.send(wire.post(wire.chat_body()) + wire.post(wire.chat_body(pad=4_000_000)))
    answer = await client.answer()
    assert (answer.status, answer.one("connection")) == (200, "close")
    assert await client.closed()
    assert len(one.asked) == 1
    item.assert_accounted()


async def test_much_that_is_pipelined_behind_a_quick_answer_is_served(harness, engine, wire) -> None:
    """Reading pauses for a moment alone, so nothing is lost."""
    one = await engine()
    item = await harness(one)
    client = await item.client()
    client.send(wire.post(wire.chat_body(pad=400_000)) * 3)
    assert [(await client.answer()).status for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_between_head_and_first_token_aborts_the_engine(harness, engine, wire, eventually, how) -> None:
    """An engine sends a stream's head at once and then computes the prompt: nothing is there to be written then."""

    async def prefill(asked, writer) -> None:
        writer.write(wire.sse_head)
        await asyncio.sleep(30)

    one = await engine(prefill)
    item = await harness(one)
    took = []
    for _ in range(3):  # the machine may stall in one
        client = await item.client()
        client.send(wire.post(wire.chat_body(stream=True)))
        await client.head()
        took.append(await left(item, one, eventually, client, how))
        assert item.notes.last.aborted
    assert min(took) < 0.3
    item.assert_accounted()


async def test_a_half_close_within_a_stream_is_served(harness, engine, wire) -> None:
    """FIN after the first tokens: those that follow show that the client is there."""

    async def stream(asked, writer) -> None:
        writer.write(wire.sse_head)
        for _ in range(3):
            writer.write(wire.chunk(b"data: x\n\n"))
            await asyncio.sleep(0.2)
        writer.write(b"0\r\n\r\n")

    item = await harness(await engine(stream))
    client = await item.client()
    client.send(wire.post(wire.chat_body(stream=True)))
    await client.reader.readuntil(b"data: x\n\n")
    client.half_close()
    rest = await asyncio.wait_for(client.reader.read(), 10)
    assert rest.count(b"data: x\n\n") == 2
    assert rest.endswith(b"0\r\n\r\n")


async def test_a_half_close_can_be_taken_for_leaving(harness, engine, wire, eventually) -> None:
    """`abort_on_half_close`: at once."""
    one = await engine(silent)
    item = await harness(one, abort_on_half_close=True)
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    await eventually(lambda: one.asked)
    client.half_close()
    await eventually(lambda: one.open == 0, timeout_s=2)
    assert item.notes.last.aborted


@pytest.mark.parametrize("how", LEAVE)
async def test_leaving_the_queue_gives_the_place_to_the_next(harness, engine, wire, eventually, how) -> None:
    """One that waits at the router for a full replica: it never reaches an engine."""
    one = await engine(silent)
    item = await harness(one, limits={"max_in_flight": 1})
    first, second = await item.client(), await item.client()
    first.send(wire.post(wire.chat_body()))
    await eventually(lambda: one.asked)
    second.send(wire.post(wire.chat_body()))
    await eventually(lambda: item.plane.forwarder.waiting is not None and len(item.plane.forwarder.waiting) == 1)
    begun_s = time.monotonic()
    getattr(second, how)()
    await eventually(lambda: len(item.plane.forwarder.waiting) == 0)
    assert time.monotonic() - begun_s < 0.5
    assert len(one.asked) == 1
