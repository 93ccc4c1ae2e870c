"""A stream that breaks off goes on at another replica, and the client sees one stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

RETRY = {"continuation": True}


def chunk_of(content: str, name: str, finish: str | None = None, **delta: Any) -> bytes:
    """A chat's event."""
    choice = {"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": name, "choices": [choice]}).encode() + b"\n\n"


def breaking(wire: Any, *events: bytes, tail: bytes = b"") -> Any:
    """An engine that dies after these events, and a part of another one."""

    async def behave(asked: Any, writer: Any) -> None:
        writer.write(wire.sse_head)
        for each in events:
            writer.write(wire.chunk(each))
            await asyncio.sleep(0.01)
        if tail:
            writer.write(wire.chunk(tail))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    return behave


def whole(wire: Any, *events: bytes) -> Any:
    """An engine that says all of it."""

    async def behave(asked: Any, writer: Any) -> None:
        writer.write(wire.sse_head)
        for each in events:
            writer.write(wire.chunk(each))
        writer.write(b"0\r\n\r\n")

    return behave


def said(body: bytes) -> str:
    """The text of a stream."""
    events = [json.loads(part[6:]) for part in body.split(b"\n\n") if part.startswith(b"data: {")]
    assert len({event["id"] for event in events}) <= 1
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def two(harness: Any, engine: Any, first: Any, second: Any, **settings: Any) -> tuple[Any, Any, Any]:
    """A router with both, that asks the first one first."""
    one, other = await engine(first), await engine(second)
    item = await harness(one, retry=settings or RETRY, placement={"policy": "round-robin"})
    item.announce(other, "r1")
    return item, one, other


async def test_a_broken_stream_goes_on_elsewhere(harness: Any, engine: Any, wire: Any) -> None:
    """The same bytes up to the break, half an event held back, then the rest under the same id."""
    begin = (chunk_of("", "a", role="assistant"), chunk_of("Hel", "a"))
    first = breaking(wire, *begin, tail=b'data: {"id": "a", "cho')
    rest = (chunk_of("", "b", role="assistant"), chunk_of("lo", "b"), chunk_of("", "b", "stop"), b"data: [DONE]\n\n")
    second = whole(wire, *rest)
    item, one, other = await two(harness, engine, first, second)
    answer = await item.ask(wire.post(wire.chat_body(stream=True)))
    assert answer.ended
    assert answer.body.startswith(b"".join(begin))
    assert said(answer.body) == "Hello"
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.body.count(b'"role"') == 1
    asked = json.loads(other.asked[0].body)
    assert asked["messages"][-1] == {"role": "assistant", "content": "Hel"}
    assert item.notes.retries == ["continued"]
    assert len(one.asked) == len(other.asked) == 1
    item.assert_accounted()


async def test_nothing_goes_on_by_default(harness: Any, engine: Any, wire: Any) -> None:
    """The stream is cut without its end."""
    first = breaking(wire, chunk_of("Hel", "a"))
    item, _, other = await two(harness, engine, first, whole(wire), attempts=3)
    answer = await item.ask(wire.post(wire.chat_body(stream=True)))
    assert not answer.ended
    assert answer.body == chunk_of("Hel", "a")
    assert not other.asked


async def test_a_refusal_by_the_other_one_cuts_the_stream(harness: Any, engine: Any, wire: Any) -> None:
    """As where its template does not allow to go on."""

    async def refuse(asked: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    item, _, other = await two(harness, engine, breaking(wire, chunk_of("Hel", "a")), refuse)
    answer = await item.ask(wire.post(wire.chat_body(stream=True)))
    assert not answer.ended
    assert answer.body == chunk_of("Hel", "a")
    assert len(other.asked) == 1
    item.assert_accounted()


async def test_without_another_replica_the_stream_is_cut(harness: Any, engine: Any, wire: Any) -> None:
    """And accounted for as broken."""
    item = await harness(await engine(breaking(wire, chunk_of("Hel", "a"))), retry=RETRY)
    answer = await item.ask(wire.post(wire.chat_body(stream=True)))
    assert (answer.ended, answer.body) == (False, chunk_of("Hel", "a"))
    assert item.notes.last.error == "upstream_broken"
    item.assert_accounted()


async def test_what_can_not_be_gone_on_with_passes_as_ever(harness: Any, engine: Any, wire: Any) -> None:
    """Answers that are no streams, and their errors, byte for byte."""
    one = await engine()
    item = await harness(one, retry=RETRY)
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.body) == (200, b'{"ok":true}')
    sent = b'{"model": "tiny", "stream": true, "n": 2, "messages": [{"role": "user", "content": "x"}]}'
    one.behave = breaking(wire, b"data: 1\n\n")
    assert not (await item.ask(wire.post(sent))).ended
    item.assert_accounted()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_meanwhile_stops_the_second_engine(
    harness: Any, engine: Any, wire: Any, eventually: Any, how: str
) -> None:
    """As it would the first."""

    async def slow(asked: Any, writer: Any) -> None:
        writer.write(wire.sse_head)
        for _ in range(1_000):
            writer.write(wire.chunk(chunk_of("x", "b")))
            await asyncio.sleep(0.03)

    item, _, other = await two(harness, engine, breaking(wire, chunk_of("Hel", "a")), slow)
    client = await item.client()
    client.send(wire.post(wire.chat_body(stream=True)))
    await client.reader.readuntil(b'"x"')
    getattr(client, how)()
    await eventually(lambda: other.open == 0, timeout_s=5)
    assert item.notes.last.aborted
    await eventually(lambda: item.in_flight == 0)
    item.assert_accounted()
