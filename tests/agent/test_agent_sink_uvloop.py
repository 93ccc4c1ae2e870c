"""The writing side on the loop that agents run on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import uvloop

from replica.agent import redis_link
from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.lane import Lane
from replica.agent.metrics import AgentMetrics
from replica.agent.proof import SchemeProof
from replica.agent.sink import UnitSink
from replica.agent.unit import UnitState
from router.kv.keys import Keys


def test_a_connection_that_closed_unseen_does_not_end_it(redis_url: str, mirror: Any, events: Any) -> None:
    """uvloop raises RuntimeError where a closed transport is written to: it is an outage like any other."""

    async def run() -> None:
        client = redis_link.connect(redis_url)
        unit = UnitState("r0/0", VllmAdapter(), SchemeProof("none", 16, None), None)
        sink = UnitSink(unit, Lane(client, Keys(), "r0/0", 10.0, 30.0), 10.0, 30.0, "redis", AgentMetrics())
        task = asyncio.create_task(sink.run())
        sink.register(lambda epoch: b"lease")
        async with asyncio.timeout(10):
            await sink.ready.wait()
            server = await client._server_of("any")
            for connection in server._client.connection_pool._available_connections:
                connection._writer.transport.abort()
            payload = msgspec.msgpack.encode([time.time(), [events.stored([1, 2])], 0])
            sink.offer(unit.accept(0, payload), time.monotonic())
            while mirror.dump("r0/0") != {(1, 0, 0), (2, 0, 0)}:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
        sink.end()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()

    uvloop.run(run())
