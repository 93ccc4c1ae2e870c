"""Streams pass unchanged and without delay, however they are cut (PRX-01), and at the client's pace."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
TEXTS = ["日本語", "👩‍🚀", "e\u0301", "x"]


def events(end: str, space: str, comment: str) -> list[bytes]:
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in TEXTS]
    lines = [
        f"data:{space}{json.dumps(each, ensure_ascii=False)}" for each in [*chunks, {"choices": [], "usage": USAGE}]
    ]
    return [f"{comment}{line}{end}{end}".encode() for line in [*lines, f"data:{space}[DONE]"]]


VARIANTS = {
    "plain": events("\n", " ", ""),
    "crlf": events("\r\n", " ", ""),
    "no space": events("\n", "", ""),
    "comments": events("\n", " ", ": ping\n\n"),
    "two in one": [b"".join(events("\n", " ", "")[:2]), *events("\n", " ", "")[2:]],
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("bytewise", [False, True])
async def test_streams_arrive_byte_for_byte(harness, engine, wire, name, bytewise) -> None:
    """Any SSE form, also one byte a segment, arrives with every byte of its chunked coding, and usage is counted."""
    body = b"".join(VARIANTS[name])
    raw = b"".join(wire.chunk(event) for event in VARIANTS[name]) + b"0\r\n\r\n"

    async def behave(asked, writer) -> None:
        step = 1 if bytewise else len(raw)
        writer.write(wire.sse_head)
        for at in range(0, len(raw), step):
            writer.write(raw[at : at + step])
            await asyncio.sleep(0)

    item = await harness(await engine(behave))
    answer = await item.ask(wire.post(wire.chat_body(stream=True)))
    assert answer.body == body
    assert answer.raw == raw
    outcome = item.notes.last
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens) == (12, 3, 8)
    assert outcome.ttft_s is not None
    item.assert_accounted()


async def test_a_chunk_is_not_delayed(harness, engine, wire) -> None:
    """The head, and each event, reach the client before the engine sends the next one."""
    turn = asyncio.Event()
    sent_s: list[float] = []

    async def behave(asked, writer) -> None:
        for data in (wire.sse_head, *map(wire.chunk, VARIANTS["plain"]), b"0\r\n\r\n"):
            sent_s.append(time.monotonic())
            writer.write(data)
            await turn.wait()
            turn.clear()

    item = await harness(await engine(behave))
    client = await item.client()
    client.send(wire.post(wire.chat_body(stream=True)))
    await client.head()
    delays = [time.monotonic() - sent_s[-1]]
    for event in VARIANTS["plain"]:
        turn.set()
        await client.reader.readexactly(len(wire.chunk(event)))
        delays.append(time.monotonic() - sent_s[-1])
    turn.set()
    assert await client.reader.readexactly(5) == b"0\r\n\r\n"
    assert max(delays) < 0.5


async def test_trailers_and_extensions_pass(harness, engine, wire) -> None:
    """Chunk extensions and trailers are part of the bytes and pass as they are."""
    raw = b"3;a=b\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"

    async def behave(asked, writer) -> None:
        writer.write(wire.sse_head + raw)

    item = await harness(await engine(behave))
    client = await item.client()
    for _ in range(2):
        client.send(wire.post(wire.chat_body(stream=True)))
        await client.head()
        assert await client.reader.readexactly(len(raw)) == raw


async def test_an_answer_without_length_ends_with_its_connection(harness, engine, wire) -> None:
    """A body that ends with the engine's connection is framed for the client, who keeps its connection."""

    async def behave(asked, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello ")
        await writer.drain()
        writer.write(b"world")
        writer.close()

    item = await harness(await engine(behave))
    client = await item.client()
    for _ in range(2):
        answer = await client.ask(wire.post(wire.chat_body()))
        assert (answer.body, answer.ended) == (b"hello world", True)
    item.assert_accounted()


@pytest.mark.parametrize("framing", ["chunked", "length"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_stream_that_breaks_is_cut(harness, engine, wire, framing, version) -> None:
    """What the engine said arrives; no last chunk is made up; the replica is blamed; nothing is sent twice."""

    async def behave(asked, writer) -> None:
        if framing == "chunked":
            writer.write(wire.sse_head + wire.chunk(b"data: a\n\n"))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ndata: a\n\n")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()

    one = await engine(behave)
    item = await harness(one, await engine())
    item.fleet.mark_draining("r1")
    answer = await item.ask(wire.post(wire.chat_body(stream=True), version=version))
    assert answer.status == 200
    assert not answer.ended
    if (version, framing) != ("1.0", "chunked"):  # a reset is the only sign there, and it may overtake data
        assert answer.body == b"data: a\n\n"
    assert item.notes.last.error == "upstream_broken"
    assert item.fleet.replicas["r0"].failures_in_a_row == 1
    assert len(one.asked) == 1
    item.assert_accounted()


@pytest.mark.parametrize("after", [b"HTTP/1.1 200 OK\r\n\r\n", b"rubbish"])
async def test_bytes_after_an_answer_reach_nobody(harness, engine, wire, after) -> None:
    """What an engine sends beyond its answer is not passed on, and its connection is not used again."""

    async def behave(asked, writer) -> None:
        writer.write(wire.ok() + after)

    one = await engine(behave)
    item = await harness(one)
    client = await item.client()
    for _ in range(2):
        assert (await client.ask(wire.post(wire.chat_body()))).body == b'{"ok":true}'
    assert one.connections == 2


async def test_a_slow_reader_slows_its_engine_alone(harness, engine, wire, eventually) -> None:
    """A client that does not read holds bounded memory and its engine waits; later all arrives; others went on."""
    total = 50_000_000
    sent = 0

    async def behave(asked, writer) -> None:
        nonlocal sent
        if b"slow" not in asked.body:
            writer.write(wire.ok())
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(b"x" * 100_000)
            sent += 100_000
            await writer.drain()

    item = await harness(await engine(behave))
    client = await item.client()
    client.writer.transport.pause_reading()
    client.send(wire.post(wire.chat_body("slow")))
    (running,) = await eventually(lambda: item.plane.forwarder.running)
    await eventually(lambda: running._connection is not None and running._connection._paused, what="the engine waits")
    (connection,) = item.plane.door.connections
    assert connection._transport.get_write_buffer_size() < 1_000_000
    assert sent < total
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200
    client.writer.transport.resume_reading()
    answer = await client.answer()
    assert len(answer.body) == total
    item.assert_accounted()
