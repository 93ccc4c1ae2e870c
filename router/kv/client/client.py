"""Commands on a Redis of any kind. A caller says which key a command is for; where that key is, the topology knows.

A command that a Cluster redirects is sent on at once. Everything else that fails comes back to the caller, and the next
command looks anew for where its key is: after a failover the primary, in a Cluster the slot's new node.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from router.kv.client.cluster import ClusterTopology
from router.kv.client.direct import DirectTopology
from router.kv.client.sentinel import SentinelTopology
from router.kv.client.server import Command, Script, Server
from router.kv.client.topology import ClusterFoundError, Topology, WrongKindError
from router.kv.redis_slots import SlotMap
from router.kv.redis_url import Address, RedisTarget, parse_redis_url

__all__ = ["RedisClient", "RedisError", "Script", "UnreachableError"]

LOG = logging.getLogger(__name__)
MAX_REDIRECTIONS = 5
TRY_AGAIN_S = 0.05

UnreachableError = (RedisConnectionError, OSError, TimeoutError, ClusterDownError)
"""No answer, or one that says that the server can't serve now."""
_OF_THE_SERVER = (*UnreachableError, ReadOnlyError)
_T = TypeVar("_T")


class RedisClient:
    """See the module. Connects when it is used.

    Args:
        url: Has passed `check_redis_url`.
        timeout_s: Longest wait for an answer, connecting included.

    Raises:
        RedisUrlError: The URL can't be used.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._target = parse_redis_url(url)
        self._timeout_s = timeout_s
        self._topology = self._of_kind(self._target)

    @property
    def shown(self) -> str:
        """Where Redis is, without user and password: fit for logs."""
        return self._target.shown

    @property
    def is_spread(self) -> bool:
        """Whether keys lie on several servers, of which some may fail alone."""
        return self._topology.is_spread

    @property
    def slots(self) -> SlotMap | None:
        """Where a Cluster's slots are, as far as it is known; None for other kinds."""
        return self._topology.slots

    async def run(self, key: str, *command: Any, block_s: float = 0.0) -> Any:
        """Return the answer to a command that is for one key, or for keys of its slot.

        Args:
            block_s: How long the command itself may wait for news.

        Raises:
            RedisError, OSError, TimeoutError: There is none.
        """
        return await self._at(key, lambda server, asking: server.run(command, asking=asking, block_s=block_s))

    async def script(self, script: Script, keys: Sequence[str], arguments: Command) -> Any:
        """Run a script; all its keys are of one slot. Raises as `run` does."""
        return await self._at(keys[0], lambda server, asking: server.script(script, keys, arguments, asking=asking))

    async def each(self, commands: Sequence[tuple[str, Command]]) -> list[Any]:
        """Return an answer for each (key, command), sent together to each server that has some of the keys.

        What went wrong with one stands in its place, also where its server has no answer.
        """
        answers: list[Any] = [None] * len(commands)
        servers: dict[Server, list[int]] = defaultdict(list)
        for place, (key, _) in enumerate(commands):
            try:
                servers[await self._server_of(key)].append(place)
            except UnreachableError as error:
                answers[place] = error
        await asyncio.gather(*(self._some(server, places, commands, answers) for server, places in servers.items()))
        return answers

    async def close(self) -> None:
        """Close all connections."""
        await self._topology.close()

    async def _some(
        self, server: Server, places: list[int], commands: Sequence[tuple[str, Command]], answers: list[Any]
    ) -> None:
        try:
            found = await server.each([commands[place][1] for place in places])
        except _OF_THE_SERVER as error:
            await self._topology.failed(server, error)
            found = [error] * len(places)
        for place, answer in zip(places, found, strict=True):
            if isinstance(answer, AskError | TryAgainError):  # MOVED is one of them
                key, command = commands[place]
                try:
                    answers[place] = await self.run(key, *command)
                except (RedisError, OSError, TimeoutError) as error:
                    answers[place] = error
            else:
                answers[place] = answer

    async def _at(self, key: str, operation: Callable[[Server, bool], Awaitable[_T]]) -> _T:
        try:
            return await self._follow(key, operation)
        except ClusterFoundError:
            await self._take_for_cluster()
            return await self._follow(key, operation)

    async def _follow(self, key: str, operation: Callable[[Server, bool], Awaitable[_T]]) -> _T:
        server, asking = await self._topology.server_of(key), False
        for turn in range(MAX_REDIRECTIONS):
            try:
                return await operation(server, asking)
            except MovedError as error:
                self._topology.moved(key, error.host, error.port, server)
                server, asking = await self._topology.server_of(key), False
            except AskError as error:
                server, asking = self._topology.asked_of(error.host, error.port, server), True
            except TryAgainError:
                # Keys of one slot are on two nodes while it moves.
                await asyncio.sleep(TRY_AGAIN_S * 2**turn)
            except _OF_THE_SERVER as error:
                await self._topology.failed(server, error)
                raise
        raise ClusterDownError("redirected from node to node: the Cluster's nodes do not agree yet")

    async def _server_of(self, key: str) -> Server:
        try:
            return await self._topology.server_of(key)
        except ClusterFoundError:
            await self._take_for_cluster()
            return await self._topology.server_of(key)

    async def _take_for_cluster(self) -> None:
        """The URL is of one server, which is a node of a Cluster: what it says of user and TLS holds for all nodes."""
        target, former = self._target, self._topology
        if former.is_spread:
            return  # somebody else found out meanwhile
        if target.socket_path or target.db:
            raise WrongKindError("it is a node of a Cluster: write redis+cluster://HOST:PORT, without a database")
        LOG.info("redis at %s is a Cluster: its nodes are followed", self.shown)
        self._topology = ClusterTopology(target.addresses, self._new_server)
        await former.close()

    def _of_kind(self, target: RedisTarget) -> Topology:
        if target.kind == "cluster":
            return ClusterTopology(target.addresses, self._new_server)
        if target.kind == "sentinel":
            sentinels = [
                Server(at, target.sentinel_login, target.sentinel_tls, self._timeout_s) for at in target.addresses
            ]
            return SentinelTopology(sentinels, target.service, self._new_server)
        return DirectTopology(target.socket_path or target.addresses[0], self._new_server)

    def _new_server(self, at: Address | str) -> Server:
        target = self._target
        return Server(
            at,
            target.login,
            target.tls,
            self._timeout_s,
            db=target.db,
            client_name=target.client_name,
            protocol=target.protocol,
        )
