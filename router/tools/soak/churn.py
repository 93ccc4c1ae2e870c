"""What each event does. It is over when `strike` returns: who was struck serves again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from router.tools.chaos import plan as chaos
from router.tools.chaos.faults import Striker
from router.tools.chaos.fleet import ChaosFleet
from router.tools.chaos.plan import Fault
from router.tools.chaos.questions import TIMEOUT_S, get_json
from router.tools.drain import requests_at
from router.tools.processes import StartError
from router.tools.soak.clients import leave, read_slowly
from router.tools.soak.plan import REPLICAS, Event, Kind

WAIT_S = 60.0
_POLL_S = 0.1


class Churn:
    """Strikes a fleet.

    Attributes:
        problems: What an event found wrong by itself, in words.
    """

    def __init__(self, fleet: ChaosFleet, client: aiohttp.ClientSession, seed: int) -> None:
        self._fleet = fleet
        self._client = client
        self._striker = Striker(fleet, client)
        self._rng = random.Random(f"{seed}/clients")
        self.problems: list[str] = []

    async def strike(self, event: Event) -> None:
        """Let it happen, and wait until it is over.

        Raises:
            StartError: Something did not come back in time.
        """
        await _STRIKES[event.kind](self, event)

    async def _joined(self, event: Event) -> None:
        number = await self._fleet.join()
        await self._until(f"r{number} is ready at every router", lambda: self._states(number, {"ready"}))

    async def _left(self, event: Event) -> None:
        await self._fleet.leave()
        await self._until("every router has seen it leave", lambda: self._states(REPLICAS, {"gone"}))

    async def _drained(self, event: Event) -> None:
        replica, engine = f"r{event.number}", self._fleet.engines[event.number]
        path = f"{self._fleet.router_urls[0]}/admin/replicas/{replica}/drain"
        await self._post(path, {"for_s": 10 * WAIT_S})
        await self._until(f"{replica} drains at every router", lambda: self._states(event.number, {"draining"}))
        await self._until(f"{replica} is idle", lambda: self._idle(replica))
        await engine.end()
        await engine.restart()
        await self._post(f"{path}/undo", {})
        await self._until(f"{replica} is ready again", lambda: self._states(event.number, {"ready"}))

    async def _died(self, event: Event) -> None:
        targets = (f"engine-{event.number}", f"agent-{event.number}")
        kinds = (chaos.Kind.ENGINE_KILLED, chaos.Kind.AGENT_KILLED)
        faults = [Fault(0.0, kind, target, event.lasts_s) for kind, target in zip(kinds, targets, strict=True)]
        await asyncio.gather(*(self._striker.strike(fault) for fault in faults))

    async def _engine_restarted(self, event: Event) -> None:
        await self._striker.strike(Fault(0.0, chaos.Kind.ENGINE_ENDED, f"engine-{event.number}"))

    async def _agent_restarted(self, event: Event) -> None:
        await self._striker.strike(Fault(0.0, chaos.Kind.AGENT_ENDED, f"agent-{event.number}", event.lasts_s))

    async def _router_restarted(self, event: Event) -> None:
        await self._striker.strike(Fault(0.0, chaos.Kind.ROUTER_ENDED, f"router-{event.number}", event.lasts_s))

    async def _router_killed(self, event: Event) -> None:
        await self._striker.strike(Fault(0.0, chaos.Kind.ROUTER_KILLED, f"router-{event.number}", event.lasts_s))

    async def _redis_failed_over(self, event: Event) -> None:
        await self._striker.strike(Fault(0.0, chaos.Kind.REDIS_FAILED_OVER, "redis", event.lasts_s))

    async def _redis_emptied(self, event: Event) -> None:
        await self._striker.strike(Fault(0.0, chaos.Kind.REDIS_EMPTIED, "redis"))

    async def _clients_slow(self, event: Event) -> None:
        self.problems += await read_slowly(self._fleet.router_urls)

    async def _clients_left(self, event: Event) -> None:
        self.problems += await leave(self._client, self._fleet.router_urls, self._rng)

    async def _weights_reloaded(self, event: Event) -> None:
        for number in range(len(self._fleet.routers)):
            self._fleet.configure(number, placement={"weights": {"running_tokens": event.number}})
        await self._until("the routers have read their weights", lambda: self._weight_is(event.number))

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not await holds():
            if time.monotonic() > deadline:
                raise StartError(f"not within {WAIT_S:g} s: {what}")
            await asyncio.sleep(_POLL_S)

    async def _states(self, number: int, wanted: set[str]) -> bool:
        """Whether every router has the replica in one of these states; `gone` is not listed at all."""
        found = set()
        for url in self._fleet.router_urls:
            listed = (await get_json(self._client, f"{url}/admin/replicas")).get("replicas")
            if listed is None:
                return False
            states = [item["state"] for item in listed if item["replica"] == f"r{number}"]
            found |= set(states or ["gone"])
        return found <= wanted

    async def _idle(self, replica: str) -> bool:
        lists = [await get_json(self._client, f"{url}/admin/replicas") for url in self._fleet.router_urls]
        return all(listed and requests_at(listed, replica) == 0 for listed in lists)

    async def _weight_is(self, value: int) -> bool:
        configs = [await get_json(self._client, f"{url}/admin/config") for url in self._fleet.router_urls]
        return all(config and config["placement"]["weights"]["running_tokens"] == value for config in configs)

    async def _post(self, url: str, body: dict[str, Any]) -> None:
        try:
            async with self._client.post(url, json=body, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S * 2)) as answer:
                if answer.status != 200:
                    raise StartError(f"{url} answered {answer.status}: {(await answer.text())[:300]}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StartError(f"{url} did not answer: {type(error).__name__} {error}") from None


_STRIKES: dict[Kind, Callable[[Churn, Event], Awaitable[None]]] = {
    Kind.REPLICA_JOINED: Churn._joined,
    Kind.REPLICA_LEFT: Churn._left,
    Kind.REPLICA_DRAINED: Churn._drained,
    Kind.REPLICA_DIED: Churn._died,
    Kind.ENGINE_RESTARTED: Churn._engine_restarted,
    Kind.AGENT_RESTARTED: Churn._agent_restarted,
    Kind.ROUTER_RESTARTED: Churn._router_restarted,
    Kind.ROUTER_KILLED: Churn._router_killed,
    Kind.REDIS_FAILED_OVER: Churn._redis_failed_over,
    Kind.REDIS_EMPTIED: Churn._redis_emptied,
    Kind.CLIENTS_SLOW: Churn._clients_slow,
    Kind.CLIENTS_LEFT: Churn._clients_left,
    Kind.WEIGHTS_RELOADED: Churn._weights_reloaded,
}
