"""The primary that Sentinels name.

All Sentinels are asked at once, so that one that hangs costs nothing, and of their answers the one of the newest
configuration counts: a Sentinel that was cut off still names the former primary. While commands go on, they are asked
again now and then, since a primary that was cut off together with us would answer for ever.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from router.kv.client.server import Server
from router.kv.client.topology import NewServer, WrongKindError
from router.kv.redis_slots import SlotMap
from router.kv.redis_url import Address

OTHERS_S = 0.2
"""After the first answer, others are waited for no longer than this."""
LOOK_AGAIN_S = 2.0


class SentinelTopology:
    """See the module.

    Args:
        sentinels: To ask.
        service: What they call the primary.
        new_server: Makes the primary's server.
    """

    is_spread = False
    slots: SlotMap | None = None

    def __init__(self, sentinels: list[Server], service: str, new_server: NewServer) -> None:
        self._sentinels = sentinels
        self._service = service
        self._new_server = new_server
        self._primary: Server | None = None
        self._looked_s = 0.0
        self._look: asyncio.Task[None] | None = None
        self._finding = asyncio.Lock()

    async def server_of(self, key: str) -> Server:
        """Return the primary."""
        if self._primary is None:
            async with self._finding:
                if self._primary is None:
                    self._primary = await self._find()
        elif time.monotonic() - self._looked_s > LOOK_AGAIN_S and (self._look is None or self._look.done()):
            self._looked_s = time.monotonic()
            self._look = asyncio.create_task(self._look_again(self._primary))
        return self._primary

    def moved(self, key: str, host: str, port: int, asked: Server) -> None:
        """Sentinels watch no Cluster."""
        raise WrongKindError("the primary is a node of a Cluster: write redis+cluster://HOST:PORT")

    def asked_of(self, host: str, port: int, asked: Server) -> Server:
        """Sentinels watch no Cluster."""
        raise WrongKindError("the primary is a node of a Cluster: write redis+cluster://HOST:PORT")

    async def failed(self, server: Server, error: BaseException) -> None:
        """Ask the Sentinels anew where the primary is."""
        if isinstance(error, (RedisConnectionError, OSError, TimeoutError, ReadOnlyError)):
            await self._leave(server)

    async def close(self) -> None:
        """Close the primary's connections and the Sentinels'."""
        if self._look is not None:
            self._look.cancel()
        await asyncio.gather(*(server.close() for server in [*self._sentinels, self._primary] if server is not None))

    async def _find(self) -> Server:
        self._looked_s = time.monotonic()
        server = self._new_server(await self._ask())
        try:
            role = (await server.hello()).get("role")
        except BaseException:
            await server.close()
            raise
        if role != "master":
            await server.close()
            raise RedisConnectionError("what Sentinels name as the primary is a replica: a failover is under way")
        return server

    async def _look_again(self, known: Server) -> None:
        try:
            address = await self._ask()
        except (RedisError, OSError, TimeoutError):
            return  # the primary answers, and that is what counts
        if address != known.at:
            await self._leave(known)

    async def _leave(self, server: Server) -> None:
        if self._primary is server:
            self._primary = None
            await server.close()

    async def _ask(self) -> Address:
        """Return the primary's address by the newest configuration that any Sentinel knows."""
        asked = [
            asyncio.create_task(sentinel.run(("SENTINEL", "MASTER", self._service))) for sentinel in self._sentinels
        ]
        found: list[tuple[int, Address]] = []
        try:
            pending = set(asked)
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=OTHERS_S if found else None, return_when=asyncio.FIRST_COMPLETED
                )
                told = [_primary(task.result()) for task in done if task.exception() is None]
                found += [one for one in told if one[0] >= 0]
                if not done:
                    break
        finally:
            for task in asked:
                task.cancel()
            results = await asyncio.gather(*asked, return_exceptions=True)
        if found:
            return max(found)[1]
        # One that answers says more than those that can't be reached.
        errors = sorted(
            (result for result in results if isinstance(result, BaseException)),
            key=lambda error: not isinstance(error, ResponseError),
        )
        reason = (str(errors[0]) or type(errors[0]).__name__) if errors else "their answer can't be read"
        raise RedisConnectionError(f"no Sentinel names the primary: {reason}")


def _primary(answer: Any) -> tuple[int, Address]:
    if not isinstance(answer, dict):
        answer = dict(zip(answer[::2], answer[1::2], strict=False))
    facts = {_text(name): _text(value) for name, value in answer.items()}
    try:
        return int(facts.get("config-epoch") or 0), (str(facts["ip"]), int(facts["port"]))
    except (KeyError, ValueError):
        return -1, ("", 0)


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
