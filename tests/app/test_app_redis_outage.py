"""Redis goes away under traffic and comes back: nobody notices but the log (RED-01)."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from router.tools.chaos.relay import Relay
from router.tools.local_fleet import LocalFleet
from router.tools.processes import Child, stop_all

REQUESTS_PER_S = 50
OUTAGE_S = 4.0
ADDED_S = 0.1
WARM_AGAIN_S = 5.0


@pytest.fixture
async def behind_relay(fleet: LocalFleet, eventually: Callable[..., Any]) -> AsyncIterator[tuple[str, Relay]]:
    """A router of its own on the fleet, with a relay between it and Valkey."""
    relay = Relay(urlsplit(fleet.redis_url).port or 0)
    config = json.loads((fleet.folder / "router.yaml").read_text(encoding="utf-8"))
    config["redis"] = f"redis://127.0.0.1:{await relay.start()}/0"
    path = fleet.folder / "relayed.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    child = Child("relayed", [sys.executable, "-m", "router.cli", "router", "--config", str(path)], fleet.folder)
    ready = await eventually(child.ready_line, timeout_s=60)
    yield ready["http"], relay
    await asyncio.to_thread(stop_all, [child])
    await relay.close()


class Steady:
    """Fifty short prompts a second, each sent at its own time."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self.statuses: list[int] = []
        self.seconds: list[float] = []
        self._client = client
        self._url = url
        self._sent = 0

    async def ask(self, text: str) -> tuple[int, int]:
        """One prompt; its status and matched tokens."""
        body = {"model": "tiny", "prompt": text, "max_tokens": 1}
        async with self._client.post(f"{self._url}/v1/completions", json=body) as answer:
            await answer.read()
            return answer.status, int(answer.headers.get("x-warmroute-matched-tokens", "0"))

    async def run(self, seconds: float) -> float:
        """Send for so long; return the median of the seconds that answers took."""
        first, began_s = len(self.seconds), time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * REQUESTS_PER_S)):
                await asyncio.sleep(began_s + number / REQUESTS_PER_S - time.monotonic())
                group.create_task(self._one())
        return statistics.median(self.seconds[first:])

    async def _one(self) -> None:
        self._sent += 1
        began_s = time.monotonic()
        self.statuses.append((await self.ask(f"steady question {self._sent % 7} of seven"))[0])
        self.seconds.append(time.monotonic() - began_s)


async def test_an_outage_costs_no_request_and_no_time(
    behind_relay: tuple[str, Relay], eventually: Callable[..., Any]
) -> None:
    """Reset, then black-holed, under 50 requests a second: none fails, none waits, and readiness stays. Within 5 s of
    its return new blocks are known, with no restart."""
    url, relay = behind_relay
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def status(path: str) -> int:
            async with client.get(url + path) as answer:
                return answer.status

        async def lost() -> bool:
            async with client.get(f"{url}/metrics") as answer:
                return 'warmroute_feed_up{feed="redis"} 0.0' in await answer.text()

        async def is_known(text: str) -> bool:
            body = {"model": "tiny", "prompt": text}
            async with client.post(f"{url}/admin/explain", json=body) as answer:
                return (await answer.json())["matched_tokens"] > 0

        await eventually(lambda: _is_200(status("/readyz")), timeout_s=60)
        steady = Steady(client, url)
        usual_s = await steady.run(1.0)
        relay.refusing = True
        relay.end_connections(reset=True)
        reset_s = await steady.run(OUTAGE_S)
        assert await lost()
        relay.refusing = False
        relay.stall(True)
        silent_s = await steady.run(OUTAGE_S)
        assert await status("/readyz") == 200
        assert await lost()
        relay.stall(False)
        back_s = time.monotonic()
        number = 0
        while True:  # a prompt of its own each time, so that only events can make it known
            number += 1
            text = f"after the outage {number}: " + "the cache tells what it holds " * 8
            assert (await steady.ask(text))[0] == 200
            await asyncio.sleep(0.1)
            if await is_known(text):
                break
            assert time.monotonic() - back_s < WARM_AGAIN_S
    assert set(steady.statuses) == {200}
    assert max(reset_s, silent_s) <= usual_s + ADDED_S


async def _is_200(asked: Any) -> bool:
    return await asked == 200
