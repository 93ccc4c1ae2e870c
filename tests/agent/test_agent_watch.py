"""What an agent tells of its engine while that changes: models, adapters, load, silence. A stub and a real Valkey."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from router.kv import registration
from router.kv.registration import RegisteredModel
from router.kv.wire import Heartbeat, decode

UNIT = "r0/0"
LOAD = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"


class Stub:
    """An engine's HTTP side that a test changes."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] = [{"id": "tiny", "root": "/m/tiny", "parent": None}]
        self.metrics = LOAD
        self.hanging: set[str] = set()
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path in self.hanging:
            await asyncio.sleep(60)
        if request.path == "/v1/models":
            return web.json_response({"data": self.models})
        if request.path == "/metrics":
            return web.Response(text=self.metrics)
        return web.Response(status=200 if request.path == "/health" else 404)


@pytest.fixture
async def stub(start: Any, redis_url: str) -> AsyncIterator[Stub]:
    """A stub engine with an agent beside it."""
    one = Stub()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", one.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    await start(
        "agent", "--engine-url", one.url, "--replica-id", "r0", "--lease-s", "2", WARMROUTE_AGENT_REDIS=redis_url
    )
    yield one
    await runner.cleanup()


def models(mirror: Any) -> list[RegisteredModel]:
    return registration.decode(mirror.client.get(mirror.keys.lease(UNIT)), None).models


def beats(mirror: Any) -> list[Heartbeat]:
    return [message for message in mirror.messages(UNIT) if isinstance(message, Heartbeat)]


async def test_a_new_adapter_and_another_length_are_told_within_5_s(stub: Stub, mirror: Any, eventually: Any) -> None:
    """Loaded while running; and a model's context that changed."""
    assert models(mirror) == [RegisteredModel("tiny", "/m/tiny")]
    stub.models[0]["max_model_len"] = 4096
    stub.models.append({"id": "sql", "root": "/loras/sql", "parent": "tiny"})
    expected = [RegisteredModel("tiny", "/m/tiny", None, 4096), RegisteredModel("sql", "/loras/sql", "tiny")]
    await eventually(lambda: models(mirror) == expected, timeout_s=5.0)
    stub.models.pop()
    await eventually(lambda: models(mirror) == expected[:1], timeout_s=5.0)


async def test_a_scrape_that_hangs_is_unknown_and_the_unit_beats_on(stub: Stub, mirror: Any, eventually: Any) -> None:
    """Heartbeats go on at least twice a second; within two their load is unknown, never idle; and known again after."""
    await eventually(lambda: any(beat.running == 3 for beat in beats(mirror)))
    stub.hanging = {"/metrics"}
    began_s, before = time.monotonic(), len(beats(mirror))
    await eventually(lambda: beats(mirror)[-1].running is None)
    await eventually(lambda: len(beats(mirror)) >= before + 8)
    assert time.monotonic() - began_s < 6
    assert {(beat.running, beat.waiting) for beat in beats(mirror)} == {(3, 2), (None, None)}
    stub.hanging = set()
    await eventually(lambda: beats(mirror)[-1].running == 3)


@pytest.mark.parametrize("hanging", [["/v1/models"], ["/version"], ["/metrics", "/health", "/v1/models"]])
async def test_no_path_that_hangs_holds_up_a_heartbeat(
    hanging: list[str], stub: Stub, mirror: Any, eventually: Any
) -> None:
    """What the engine serves, and whether it is alive, is asked beside its load, which is told twice a second."""
    await eventually(lambda: any(beat.running == 3 for beat in beats(mirror)))
    stub.hanging = set(hanging)
    stub.metrics = LOAD.replace("running 3", "running 5")
    told = None if "/metrics" in hanging else 5
    await eventually(lambda: beats(mirror)[-1].running == told)
    entries = mirror.client.xrange
    seen = len(beats(mirror))
    await eventually(lambda: len(beats(mirror)) >= seen + 12)
    at_s = [
        int(entry.split(b"-")[0]) / 1000
        for entry, fields in entries(mirror.keys.stream_of(UNIT))
        if isinstance(decode(fields[b"d"]), Heartbeat)
    ][seen:]
    assert max(later - earlier for earlier, later in itertools.pairwise(at_s)) < 2.0
    assert beats(mirror)[-1].running == told


async def test_a_scrape_that_fails_is_unknown(stub: Stub, mirror: Any, eventually: Any) -> None:
    """Nonsense and missing figures are no load."""
    await eventually(lambda: any(beat.running == 3 for beat in beats(mirror)))
    for metrics in ("", "vllm:num_requests_running x\n", LOAD.replace("vllm:num_requests_waiting 2\n", "")):
        stub.metrics = metrics
        seen = len(beats(mirror))
        await eventually(lambda seen=seen: len(beats(mirror)) > seen + 3 and beats(mirror)[-1].running is None)
    assert all(beat.running in (3, None) for beat in beats(mirror))
