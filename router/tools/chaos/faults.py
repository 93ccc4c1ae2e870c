"""What each kind of fault does."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp

from router.tools.chaos.fleet import ChaosFleet
from router.tools.chaos.plan import MAX_REPLICAS_OUT, Fault, Kind, takes_replica_out
from router.tools.chaos.relay import Relay

QUESTION_TIMEOUT_S = 5.0


class Striker:
    """Applies faults to a fleet; each is over when `strike` returns.

    Attributes:
        struck: Faults by kind.
        refused_resets: Caches that were not reset, as requests ran there.
    """

    def __init__(self, fleet: ChaosFleet, client: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._client = client
        # On a busy machine a process takes longer to come back than planned: the next fault waits for that.
        self._replicas = asyncio.Semaphore(MAX_REPLICAS_OUT)
        self._router = asyncio.Lock()
        self._redis = asyncio.Lock()
        self._targets: dict[str, asyncio.Lock] = {}
        self.struck: Counter[str] = Counter()
        self.refused_resets = 0

    async def strike(self, fault: Fault) -> None:
        """Let it happen, wait as long as it lasts, and undo it."""
        async with self._targets.setdefault(fault.target, asyncio.Lock()):
            if takes_replica_out(fault.kind):
                async with self._replicas:
                    await self._strike(fault)
            elif fault.target.startswith("router"):
                async with self._router:
                    await self._strike(fault)
            elif fault.target == "redis":
                async with self._redis:
                    await self._strike(fault)
            else:
                await self._strike(fault)

    async def _strike(self, fault: Fault) -> None:
        self.struck[fault.kind] += 1
        await _STRIKES[fault.kind](self, fault)

    # -- processes ----------------------------------------------------------------------------------------------------

    async def _killed(self, fault: Fault) -> None:
        process = self._fleet.processes()[fault.target]
        await process.kill()
        await asyncio.sleep(fault.lasts_s)
        await process.restart()

    async def _ended(self, fault: Fault) -> None:
        process = self._fleet.processes()[fault.target]
        await process.end()
        await asyncio.sleep(fault.lasts_s)
        await process.restart()

    async def _hung(self, fault: Fault) -> None:
        process = self._fleet.processes()[fault.target]
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            process.signal(signal.SIGCONT)

    async def _hung_killed(self, fault: Fault) -> None:
        process = self._fleet.processes()[fault.target]
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s)
        await process.kill()
        await process.restart()

    async def _reset(self, fault: Fault) -> None:
        url = self._fleet.engine_urls[int(fault.target[-1])] + "/reset_prefix_cache"
        timeout = aiohttp.ClientTimeout(total=QUESTION_TIMEOUT_S)
        async with self._client.post(url, timeout=timeout) as answer:
            self.refused_resets += not (await answer.json())["success"]

    # -- Redis --------------------------------------------------------------------------------------------------------

    async def _redis_killed(self, fault: Fault) -> None:
        await self._fleet.valkeys.kill()
        await asyncio.sleep(fault.lasts_s)
        await self._fleet.valkeys.restart()

    async def _redis_hung(self, fault: Fault) -> None:
        self._fleet.valkeys.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._fleet.valkeys.signal(signal.SIGCONT)

    async def _redis_emptied(self, fault: Fault) -> None:
        await self._fleet.valkeys.empty()

    async def _redis_replaced(self, fault: Fault) -> None:
        before = await self._fleet.valkeys.replace()
        self._fleet.retarget()
        await self._fleet.valkeys.retire(before)

    async def _redis_failed_over(self, fault: Fault) -> None:
        valkeys = self._fleet.valkeys
        replica, port = await valkeys.follow()
        await valkeys.forsake(port)
        await asyncio.sleep(fault.lasts_s)
        before = valkeys.promote(replica, port)
        self._fleet.retarget()
        await valkeys.retire(before)

    # -- connections --------------------------------------------------------------------------------------------------

    def _relays(self, fault: Fault) -> list[Relay]:
        links = self._fleet.links
        return list(links.values()) if fault.target == "links" else [links[fault.target]]

    async def _link_cut(self, fault: Fault) -> None:
        for relay in self._relays(fault):
            relay.end_connections(reset=False)

    async def _link_reset(self, fault: Fault) -> None:
        for relay in self._relays(fault):
            relay.end_connections(reset=True)

    async def _link_stalled(self, fault: Fault) -> None:
        await _stalled(self._relays(fault), fault.lasts_s)

    async def _link_refused(self, fault: Fault) -> None:
        for relay in self._relays(fault):
            relay.refusing = True
            relay.end_connections(reset=True)
        await asyncio.sleep(fault.lasts_s)
        for relay in self._relays(fault):
            relay.refusing = False

    async def _replay_stalled(self, fault: Fault) -> None:
        await _stalled([self._fleet.replays[fault.target]], fault.lasts_s)

    # -- event messages -----------------------------------------------------------------------------------------------

    async def _frames_dropped(self, fault: Fault) -> None:
        self._fleet.manglers[fault.target].drop += fault.messages

    async def _frames_tail_dropped(self, fault: Fault) -> None:
        self._fleet.manglers[fault.target.replace("tail", "frames")].drop_all = True

    async def _frames_doubled(self, fault: Fault) -> None:
        self._fleet.manglers[fault.target].double += fault.messages

    async def _frames_reordered(self, fault: Fault) -> None:
        self._fleet.manglers[fault.target].reverse = fault.messages
        await asyncio.sleep(fault.lasts_s)
        self._fleet.frames[fault.target].send_held()

    async def _frames_cut(self, fault: Fault) -> None:
        self._fleet.frames[fault.target].end_connections(reset=True)


async def _stalled(relays: list[Relay], seconds: float) -> None:
    for relay in relays:
        relay.stall(True)
    try:
        await asyncio.sleep(seconds)
    finally:
        for relay in relays:
            relay.stall(False)


_STRIKES: dict[Kind, Callable[[Striker, Fault], Awaitable[None]]] = {
    Kind.ENGINE_KILLED: Striker._killed,
    Kind.ENGINE_ENDED: Striker._ended,
    Kind.ENGINE_HUNG: Striker._hung,
    Kind.ENGINE_HUNG_KILLED: Striker._hung_killed,
    Kind.ENGINE_RESET: Striker._reset,
    Kind.AGENT_KILLED: Striker._killed,
    Kind.AGENT_ENDED: Striker._ended,
    Kind.AGENT_HUNG: Striker._hung,
    Kind.ROUTER_KILLED: Striker._killed,
    Kind.ROUTER_ENDED: Striker._ended,
    Kind.ROUTER_HUNG: Striker._hung,
    Kind.REDIS_KILLED: Striker._redis_killed,
    Kind.REDIS_HUNG: Striker._redis_hung,
    Kind.REDIS_EMPTIED: Striker._redis_emptied,
    Kind.REDIS_REPLACED: Striker._redis_replaced,
    Kind.REDIS_FAILED_OVER: Striker._redis_failed_over,
    Kind.LINK_CUT: Striker._link_cut,
    Kind.LINK_RESET: Striker._link_reset,
    Kind.LINK_STALLED: Striker._link_stalled,
    Kind.LINK_REFUSED: Striker._link_refused,
    Kind.FRAMES_DROPPED: Striker._frames_dropped,
    Kind.FRAMES_REORDERED: Striker._frames_reordered,
    Kind.FRAMES_DOUBLED: Striker._frames_doubled,
    Kind.FRAMES_TAIL_DROPPED: Striker._frames_tail_dropped,
    Kind.FRAMES_CUT: Striker._frames_cut,
    Kind.REPLAY_STALLED: Striker._replay_stalled,
}
