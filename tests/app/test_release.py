"""Load is given back however requests end: a real router, real engines that are killed and come back, real clients."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet
from router.tools.processes import Child, stop_all

REQUESTS = 240
OPTIONS = EngineOptions(num_blocks=1_024, max_num_seqs=16, prefill_tokens_per_s=20_000, decode_step_s=0.005)
ROUTER = {
    "timeouts": {"total_s": 2.0, "first_byte_s": 1.0, "connect_s": 1.0},
    "limits": {"max_in_flight": 40, "queue_requests": 20},
    "retry": {"eject_s": 0.5},
}


@pytest.fixture(scope="module")
def troubled() -> Iterator[LocalFleet]:
    """Three replicas by their addresses, so that one that dies may come back at its own."""
    with LocalFleet(OPTIONS, replicas=3, agents=False, router=ROUTER) as running:
        yield running


def engine_again(fleet: LocalFleet, number: int, name: str) -> Child:
    """Start an engine where one died."""
    arguments = OPTIONS.arguments()
    arguments[arguments.index("--port") + 1] = fleet.engines[number].http.rpartition(":")[2]
    return Child(name, [sys.executable, "-m", "router.cli", "simengine", *arguments], Path(fleet.folder))


async def one(session: aiohttp.ClientSession, url: str, number: int, rng: random.Random) -> str:
    """One request of some kind; how it ended."""
    text = f"{number % 5} " * rng.choice((5, 300, 2_000))
    body: dict[str, Any] = {"model": "tiny", "prompt": text, "max_tokens": rng.choice((1, 40, 600)), "ignore_eos": True}
    body["stream"] = rng.random() < 0.6
    kind = rng.choice(("whole", "whole", "whole", "wrong", "leaves early", "leaves late"))
    if kind == "wrong":
        body["max_tokens"] = -1
    try:
        async with asyncio.timeout({"leaves early": rng.uniform(0.001, 0.05), "leaves late": 0.5}.get(kind, 30)):
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                await answer.read()
                return str(answer.status)
    except TimeoutError:
        return "left"
    except (aiohttp.ClientError, OSError):
        return "broken"


def left_over(client: Any) -> dict[str, Any]:
    """What the router still counts."""
    _, _, answer = client.send("GET", "/admin/replicas")
    units = [unit for replica in answer["replicas"] for unit in replica["units"]]
    counted = {unit["unit"]: (unit["requests"], unit["backlog_tokens"]) for unit in units}
    return {name: figures for name, figures in counted.items() if figures != (0, 0.0)}


async def test_nothing_is_left_of_requests_that_ended_in_every_way(
    troubled: LocalFleet, client_of: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """Answers, errors, clients that leave, timeouts, a replica that is killed and comes back at its address, one that
    hangs: in the end nothing is in flight anywhere, and nobody waits."""
    client, rng = client_of(troubled.router.http), random.Random(7)
    children: list[Child] = []
    ends: list[str] = []

    async def trouble() -> None:
        for turn in range(3):
            await asyncio.sleep(0.5)
            (children[-1] if children else troubled.engines[0].child).kill()
            troubled.engines[1].child.signal(signal.SIGSTOP)
            await asyncio.sleep(0.7)
            troubled.engines[1].child.signal(signal.SIGCONT)
            children.append(engine_again(troubled, 0, f"again-{turn}"))

    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            making = asyncio.create_task(trouble())
            tasks = []
            for number in range(REQUESTS):
                tasks.append(asyncio.create_task(one(session, troubled.router.http, number, rng)))
                await asyncio.sleep(rng.uniform(0, 0.03))
            ends = await asyncio.gather(*tasks)
            await making
        assert {"200", "400", "left"} <= set(ends), ends
        assert {"502", "504", "broken"} & set(ends), ends
        await eventually(lambda: left_over(client) == {}, timeout_s=30)
        text = client.send("GET", "/metrics")[2].decode()
        assert "\nwarmroute_in_flight_requests 0.0" in text
        assert "\nwarmroute_queue_requests 0.0" in text
    finally:
        troubled.engines[1].child.signal(signal.SIGCONT)
        await asyncio.to_thread(stop_all, children)
