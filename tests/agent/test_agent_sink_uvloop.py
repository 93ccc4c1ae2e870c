"""The writing side on the loop that agents run on."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

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
from router.tools.chaos.relay import Relay


def test_connections_that_are_reset_while_idle_do_not_end_it(redis_url: str, mirror: Any, events: Any) -> None:
    """uvloop raises RuntimeError where a reset connection is written to: it is an outage like any other."""

    async def run() -> None:
        relay = Relay(urlsplit(redis_url).port or 0)
        url = f"redis://127.0.0.1:{await relay.start()}/0"
        client = redis_link.connect(url)
        unit = UnitState("r0/0", VllmAdapter(), SchemeProof("none", 16, None), None)
        sink = UnitSink(unit, Lane(client, Keys(), "r0/0", 10.0, 30.0), 10.0, 30.0, "redis", AgentMetrics())
        task = asyncio.create_task(sink.run())
        sink.register(lambda epoch: b"lease")
        try:
            async with asyncio.timeout(20):
                await sink.ready.wait()
                for number in range(5):
                    relay.end_connections(reset=True)
                    await asyncio.sleep(0.02)  # the reset is seen before anything is sent
                    payload = msgspec.msgpack.encode([time.time(), [events.stored([number])], 0])
                    sink.offer(unit.accept(number, payload), time.monotonic())
                    while mirror.dump("r0/0") != {(block, 0, 0) for block in range(number + 1)}:
                        assert not task.done(), task.exception()
                        await asyncio.sleep(0.01)
        finally:
            sink.end()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()
            await relay.close()

    uvloop.run(run())
