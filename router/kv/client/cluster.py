"""A Redis Cluster: commands go to the node that has their key's slot, and follow where it moves.

redis-py's own asyncio client for Clusters (8.1) is not used: it sends ASKING and the command that follows on whichever
connections are free, closes every node's connections when one node fails, and asks each node for its table of commands,
which our users have no right to. What is left to do is small, since callers say which key a command is for.
"""

from __future__ import annotations

import asyncio
import random
import time

from redis.exceptions import ClusterDownError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from router.kv.client.server import Server
from router.kv.client.topology import NewServer
from router.kv.redis_slots import SlotMap, SlotsError, slot_of
from router.kv.redis_url import Address

ASKED_AT_ONCE = 4
LEARN_EACH_S = 0.2
"""Least time between two readings of the map."""
OUT_S = 0.5
"""A node that failed is not asked again for so long: its lanes' failure costs the others no waiting."""


class ClusterTopology:
    """See the module.

    Args:
        seeds: Nodes to begin with.
        new_server: Makes a node's server.
    """

    is_spread = True

    def __init__(self, seeds: tuple[Address, ...], new_server: NewServer) -> None:
        self._seeds = seeds
        self._new_server = new_server
        self._nodes: dict[Address, Server] = {}
        self.slots = SlotMap()
        self._is_stale = True
        self._learnt_s = float("-inf")
        self._learning = asyncio.Lock()
        self._out_until_s: dict[Address, float] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def server_of(self, key: str) -> Server:
        """Return the primary of a key's slot."""
        slot = slot_of(key)
        if self._is_stale or self.slots.primary(slot) is None:
            await self._learn()
        address = self.slots.primary(slot)
        if address is None:
            raise ClusterDownError(f"no node serves slot {slot}")
        if time.monotonic() < self._out_until_s.get(address, 0.0):
            raise RedisConnectionError(f"node {address[0]}:{address[1]} failed a moment ago")
        return self._node(address)

    def moved(self, key: str, host: str, port: int, asked: Server) -> None:
        """Take over one slot at once; the whole map is read again with the next command."""
        self.slots.assign(slot_of(key), self._address(host, port, asked))
        self._is_stale = True

    def asked_of(self, host: str, port: int, asked: Server) -> Server:
        """Return the node that a slot is moving to."""
        return self._node(self._address(host, port, asked))

    async def failed(self, server: Server, error: BaseException) -> None:
        """Read the map again, and leave a node that gives no answer alone for a moment."""
        self._is_stale = True
        if isinstance(error, (RedisConnectionError, OSError, TimeoutError)) and not isinstance(server.at, str):
            self._out_until_s[server.at] = time.monotonic() + OUT_S

    async def close(self) -> None:
        """Close all nodes' connections."""
        await asyncio.gather(*(server.close() for server in self._nodes.values()), *self._closing)
        self._nodes.clear()
        self._is_stale = True

    async def _learn(self) -> None:
        async with self._learning:
            if time.monotonic() - self._learnt_s < LEARN_EACH_S and self.slots:
                return
            self._learnt_s = time.monotonic()
            await self._ask_for_slots()

    async def _ask_for_slots(self) -> None:
        """Take the first answer of some nodes. With an older map and no answer, the older one is better than none."""
        known = sorted(self.slots.addresses - set(self._seeds))
        some = random.sample(known, min(len(known), ASKED_AT_ONCE))
        asked = {asyncio.create_task(self._slots_from(address)) for address in [*some, *self._seeds]}
        pending, errors = set(asked), []
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is None:
                        self._is_stale = False
                        self._drop_unused()
                        return
                    errors.append(error)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if not self.slots:
            raise errors[0] if isinstance(errors[0], (RedisError, OSError)) else RedisConnectionError(str(errors[0]))

    async def _slots_from(self, address: Address) -> None:
        answer = await self._node(address).run(("CLUSTER", "SLOTS"))
        try:
            self.slots.learn(answer, address)
        except SlotsError as error:
            raise ClusterDownError(str(error)) from None

    def _node(self, address: Address) -> Server:
        server = self._nodes.get(address)
        if server is None:
            server = self._nodes[address] = self._new_server(address)
        return server

    def _drop_unused(self) -> None:
        now_s = time.monotonic()
        self._out_until_s = {at: until_s for at, until_s in self._out_until_s.items() if until_s > now_s}
        for address in set(self._nodes) - self.slots.addresses - set(self._seeds):
            task = asyncio.create_task(self._nodes.pop(address).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _address(self, host: str, port: int, asked: Server) -> Address:
        return (host or asked.at[0], port)
