"""Both routers' indexes against the engines' own memory, block for block.

Beside that: every replica is in the fleet and not down; with nothing running no router counts anything in flight; and
no router distrusts what engines report, since these engines store just what their prompts say.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from router.tools.chaos.fleet import ChaosFleet
from router.tools.chaos.questions import get_json

_POLL_S = 0.2
Held = dict[str, int]
"""Block name (16 hex digits) -> copies."""


class Comparison:
    """What was compared.

    Attributes:
        blocks: Blocks of the engines, once for each router that was compared with them.
        seconds: Until all was equal.
        differences: In words; empty when all is equal.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self.seconds = 0.0
        self.differences: list[str] = ["nothing was compared"]

    async def run(self, fleet: ChaosFleet, client: aiohttp.ClientSession, deadline_s: float) -> None:
        """Compare until all is equal, or until `deadline_s` (`time.monotonic()`)."""
        began_s = time.monotonic()
        while True:
            self.blocks, self.differences = await self._once(fleet, client)
            self.seconds = time.monotonic() - began_s
            if not self.differences or time.monotonic() > deadline_s:
                return
            await asyncio.sleep(_POLL_S)

    async def _once(self, fleet: ChaosFleet, client: aiohttp.ClientSession) -> tuple[int, list[str]]:
        blocks, differences = 0, []
        names = {f"r{number}" for number in range(len(fleet.engine_urls))}
        for number, url in enumerate(fleet.engine_urls):
            answer = await get_json(client, f"{url}/debug/blocks")
            if not answer:
                differences.append(f"engine-{number} does not answer")
                continue
            held: Held = answer["ranks"][0]["blocks"]
            for router, router_url in enumerate(fleet.router_urls):
                listed = await get_json(client, f"{router_url}/admin/replicas/r{number}/blocks?limit=100000")
                found = _differences(held, listed)
                differences += [f"router-{router} r{number}: {text}" for text in found]
                blocks += len(held)
        for router, router_url in enumerate(fleet.router_urls):
            if not await get_json(client, f"{router_url}/readyz"):
                differences.append(f"router-{router} is not ready")
            listed = await get_json(client, f"{router_url}/admin/replicas")
            for replica in listed.get("replicas", []):
                if replica["replica"] not in names:
                    differences.append(f"router-{router} {replica['replica']}: it has left, and is still listed")
                    continue
                differences += [f"router-{router} {replica['replica']}: {text}" for text in _unrest(replica)]
        return blocks, differences


def _unrest(replica: dict[str, Any]) -> list[str]:
    found = []
    if replica["state"] not in ("ready", "ejected"):  # an ejected one waits for a request that tries it
        found.append(f"it is {replica['state']}: {replica['down_reason']}")
    if any(unit["requests"] or unit["backlog_tokens"] for unit in replica["units"]):
        found.append("requests are counted in flight, and there are none")
    predictions = [record for unit in replica["units"] for record in unit["predictions"]]
    found += [f"predictions fail: {record['explanation']}" for record in predictions if record["state"] == "distrusted"]
    return found


def _differences(held: Held, listed: dict[str, Any]) -> list[str]:
    if not listed.get("units"):
        return ["the replica is not in the fleet"]
    [unit] = listed["units"]
    known = {tuple(block) for block in unit["listed"]}
    true = {(name, 0, 0) for name in held}
    found = []
    if known != true:
        found.append(f"{len(true - known)} of {len(true)} blocks are missing, {len(known - true)} are held by nobody")
    if unit["trust"] != "exact" and true:
        found.append(f"its trust is {unit['trust']}")
    return found
