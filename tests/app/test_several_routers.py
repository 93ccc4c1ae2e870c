"""Two routers in front of one fleet, as processes: what one has in flight the other knows."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet
from router.tools.processes import Child, stop_all

PROMPT_TOKENS, LAST_TOKENS, BURST = 4_000, 16, 200


@pytest.fixture(scope="module")
def slow_fleet() -> Iterator[LocalFleet]:
    """Four replicas whose prefill and answers take their time."""
    engine = EngineOptions(num_blocks=2_048, max_num_seqs=256, prefill_tokens_per_s=8_000, decode_step_s=0.02)
    with LocalFleet(engine, replicas=4) as running:
        yield running


@pytest.fixture
async def routers(slow_fleet: LocalFleet, eventually: Callable[..., Any], client_of: Callable[[str], Any]) -> Any:
    """`(first URL, second URL, second process)`: the fleet's router and another that knows of it."""
    command = [sys.executable, "-m", "router.cli", "router", "--config", str(slow_fleet.folder / "router.yaml")]
    child = Child(f"second-{time.monotonic_ns()}", command, slow_fleet.folder)
    ready = await eventually(child.ready_line, timeout_s=60)
    first, second = client_of(slow_fleet.router.http), client_of(ready["http"])

    def acquainted() -> bool:
        texts = [client.send("GET", "/metrics")[2].decode() for client in (first, second)]
        return second.send("GET", "/readyz")[0] == 200 and all("\nwarmroute_peer_routers 1.0" in text for text in texts)

    await eventually(acquainted, timeout_s=60, what="the routers hear of each other")
    yield first.url, second.url, child
    await asyncio.to_thread(stop_all, [child])


def in_flight(client: Any, where: str) -> int:
    """Requests at all units: `own`, or those of `other_routers`."""
    _, _, answer = client.send("GET", "/admin/replicas")
    units = [unit for replica in answer["replicas"] for unit in replica["units"]]
    return sum(unit["requests"] if where == "own" else unit["other_routers"]["requests"] for unit in units)


async def ask(session: aiohttp.ClientSession, url: str, prompt: list[int], max_tokens: int = 1) -> tuple[str, int]:
    """Send token ids; return the replica and the tokens that it computed for them."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        data = json.loads(await answer.read())
        assert answer.status == 200, data
        usage = data["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer.headers["x-warmroute-replica"], usage["prompt_tokens"] - cached


async def test_equal_cold_prompts_over_two_routers_are_computed_once_for_each_replica_used(
    routers: tuple[str, str, Child],
) -> None:
    """200 at once, half to each router, with a few tokens of their own: 1.05 times one prefill plus the last blocks."""
    common = [10 + (7 * place) % 300 for place in range(PROMPT_TOKENS)]
    prompts = [
        [*common, *(10 + (number * 31 + place) % 300 for place in range(LAST_TOKENS))] for number in range(BURST)
    ]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(120)) as session:
        answers = await asyncio.gather(
            *(ask(session, routers[number % 2], prompt) for number, prompt in enumerate(prompts))
        )
    computed, used = Counter[str](), Counter[str]()
    for replica, tokens in answers:
        computed[replica] += tokens
        used[replica] += 1
    last_blocks = LAST_TOKENS + 16  # a block is whole, and the engine computes the last token always
    bounds = {name: 1.05 * (PROMPT_TOKENS + count * last_blocks) for name, count in used.items()}
    assert {name: (tokens, bounds[name]) for name, tokens in computed.items() if tokens > bounds[name]} == {}, used


async def test_a_killed_router_s_requests_are_gone_after_three_seconds(
    routers: tuple[str, str, Child], client_of: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """Long answers run through the second router: the first knows of them, until it is killed and 3 s are over."""
    first = client_of(routers[0])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [
            asyncio.create_task(ask(session, routers[1], [9 + number] * 40, max_tokens=1_500)) for number in range(12)
        ]
        await eventually(lambda: in_flight(first, "others") == 12, what="the first router hears of them")
        assert in_flight(first, "own") == 0
        routers[2].signal(signal.SIGKILL)
        killed_s = time.monotonic()
        await eventually(lambda: in_flight(first, "others") == 0, timeout_s=20)
        assert time.monotonic() - killed_s > 1.9  # what was told up to a second before counts for 3 s
        assert all(isinstance(end, Exception) for end in await asyncio.gather(*tasks, return_exceptions=True))
