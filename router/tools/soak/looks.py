"""A look at a fleet that nobody asks anything of.

Both routers' indexes equal the engines' memory block for block, and count nothing in flight (chaos/blocks.py); no
engine runs or queues anything; and every process is sampled.
"""

from __future__ import annotations

import asyncio
import time

import aiohttp
from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.kv.engine_metrics import loads
from router.tools.chaos.blocks import Comparison
from router.tools.chaos.fleet import ChaosFleet
from router.tools.chaos.processes import ChaosProcess
from router.tools.chaos.questions import TIMEOUT_S
from router.tools.soak.leaks import Lives, sample

DEADLINE_S = 60.0
"""For all to be as it should be: a condition is waited for, so only what never comes takes this long."""
_POLL_S = 0.5


class Looks:
    """Takes them.

    Attributes:
        lives: All samples.
        blocks: Compared, over all looks.
        count: Looks.
        slowest_s: The longest time until indexes and engines were equal.
    """

    def __init__(self, fleet: ChaosFleet, client: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._client = client
        self.lives = Lives()
        self.blocks = self.count = 0
        self.slowest_s = 0.0

    async def take(self, requests: int) -> list[str]:
        """Look once; return what is not as it should be, in words."""
        for process in self._fleet.processes().values():
            process.look()
        comparison = Comparison()
        await comparison.run(self._fleet, self._client, time.monotonic() + DEADLINE_S)
        problems = [*comparison.differences, *await self._busy_engines()]
        for process in self._fleet.processes().values():
            await self._sample(process, requests)
        self.lives.keys.append(await self._keys())
        self.blocks += comparison.blocks
        self.slowest_s = max(self.slowest_s, comparison.seconds)
        self.count += 1
        return problems

    async def _busy_engines(self) -> list[str]:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            busy = [found for number in range(len(self._fleet.engines)) if (found := await self._busy(number))]
            if not busy or time.monotonic() > deadline:
                return busy
            await asyncio.sleep(_POLL_S)

    async def _busy(self, number: int) -> str:
        url = f"{self._fleet.engine_urls[number]}/metrics"
        try:
            async with self._client.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as answer:
                found = loads(await answer.text()).values()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"engine-{number} tells no figures: {type(error).__name__}"
        left = sum(load.running + load.waiting for load in found)
        return f"engine-{number} still has {left} requests, and nobody waits for them" if left else ""

    async def _sample(self, process: ChaosProcess, requests: int) -> None:
        """Sample a process, once connections that nobody uses are closed."""
        pid, deadline = process.child.pid, time.monotonic() + DEADLINE_S
        allowed = self.lives.files_allowed(process.name, pid)
        while True:
            seen = sample(pid, requests)
            if seen is None:
                return
            if allowed is None or seen.files <= allowed or time.monotonic() > deadline:
                self.lives.samples[process.name, pid].append(seen)
                return
            await asyncio.sleep(_POLL_S)

    async def _keys(self) -> int:
        client = Redis(host="127.0.0.1", port=self._fleet.valkeys.port, socket_timeout=TIMEOUT_S)
        try:
            async with client:
                return int(await client.dbsize())
        except (RedisError, OSError):
            return self.lives.keys[-1] if self.lives.keys else 0
