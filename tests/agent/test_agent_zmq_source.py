"""Real ZMQ sockets: frames in, replays asked for, rubbish counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from replica.agent.zmq_source import EventSource


@pytest.fixture
async def source(publisher, zmq_context) -> AsyncIterator[EventSource]:  # type: ignore[no-untyped-def]
    """A source that is connected to the publisher and subscribed."""
    one = EventSource(zmq_context, publisher.events_address, publisher.replay_address)
    assert await one.connected(5.0)
    await subscribed(one, publisher)
    yield one
    one.close()


async def subscribed(one: EventSource, publisher) -> None:  # type: ignore[no-untyped-def]
    """Send until something arrives: a subscription takes hold some time after the connection."""
    async with asyncio.timeout(5):
        while not await one.receive(0.01):
            publisher.send((b"kv", b"\0" * 8, b""))
    while await one.receive(0.05):
        pass


async def test_frames_come_in_order(source, publisher, events) -> None:  # type: ignore[no-untyped-def]
    """Ten batches arrive with their numbers and payloads."""
    sent = [publisher.publish([events.cleared]) for _ in range(10)]
    got = []
    while len(got) < 10:
        got += await source.receive(5.0)
    assert [(frame.sequence, frame.payload) for frame in got] == [(i, frames[2]) for i, frames in enumerate(sent)]


async def test_what_is_no_frame_is_counted(source, publisher, events) -> None:  # type: ignore[no-untyped-def]
    """Two parts, four parts and a short number are counted, and the next batch is read."""
    before = source.malformed
    for parts in ((b"kv", b"\0" * 8), (b"kv", b"\0" * 8, b"", b""), (b"kv", b"\0" * 7, b"")):
        publisher.send(parts)
    publisher.publish([events.cleared])
    got = await source.receive(5.0)
    assert ([frame.sequence for frame in got], source.malformed - before) == ([0], 3)


async def test_a_replay_gives_what_the_engine_still_has(source, publisher, events) -> None:  # type: ignore[no-untyped-def]
    """Asked from 1, with a buffer of two: batches 3 and 4 come, and nothing says that 1 and 2 are lost."""
    publisher.buffer_steps = 2
    payloads = [publisher.publish([events.cleared], lose=True)[2] for _ in range(5)]
    assert await source.replay(1, 5.0) == [(3, payloads[3]), (4, payloads[4])]


async def test_a_replay_without_topics_is_understood(source, publisher, events) -> None:  # type: ignore[no-untyped-def]
    """Frames of earlier vLLM and of SGLang, [b"", sequence, payload], and their end marker."""
    publisher.replay_topic = False
    payloads = [publisher.publish([events.cleared], lose=True)[2] for _ in range(2)]
    assert await source.replay(0, 1.0) == list(enumerate(payloads))
    assert await source.replay(2, 1.0) == []


async def test_a_large_replay_is_whole(source, publisher, events) -> None:  # type: ignore[no-untyped-def]
    """Three thousand batches come in one replay."""
    for _ in range(3000):
        publisher.publish([events.cleared], lose=True)
    batches = await source.replay(0, 5.0)
    assert [number for number, _ in batches or ()] == list(range(3000))


async def test_a_replay_socket_that_is_silent_is_none(zmq_context, publisher) -> None:  # type: ignore[no-untyped-def]
    """Nobody listens there: None after the timeout, and None at once without an address."""
    nowhere = EventSource(zmq_context, publisher.events_address, "tcp://127.0.0.1:9")
    without = EventSource(zmq_context, publisher.events_address, None)
    try:
        assert await nowhere.replay(0, 0.05) is None
        assert await without.replay(0, 60.0) is None
    finally:
        nowhere.close()
        without.close()


async def test_a_new_connection_is_noticed(source, publisher, eventually) -> None:  # type: ignore[no-untyped-def]
    """An engine that restarts at its address shows as one connection more."""
    before = source.connections()
    await publisher.restart()
    await eventually(lambda: source.connections() > before)
