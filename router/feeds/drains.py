"""Operators' orders that a replica takes no new requests: who is under one, until when, and who else is told.

An order on a replica with an agent reaches the whole fleet: it is kept in Redis, signed and with an end; every router
reads it with the leases, also one that restarts, and the agent obeys it too, so its lease says draining. Where Redis is
away, the order holds here at once and is written when Redis is back. An order on a replica of the configuration stays
with this router, and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from router.feeds.directory import Directory
from router.feeds.redis_link import KeyFaultError, RedisError, RedisLink
from router.fleet.fleet import Fleet
from router.kv import drains as wire

LOG = logging.getLogger("warmroute.feeds")
EXPIRE_EACH_S = 1.0
TELL_TIMEOUT_S = 3.0
MAX_ORDERS = 10_000


@dataclass(slots=True)
class _Order:
    """One order.

    Attributes:
        until_unix_s: When it ends by itself.
        shared: It belongs in Redis; what is no longer there was undone elsewhere.
        written: Redis has it.
    """

    until_unix_s: float
    shared: bool
    written: bool = False


class Drains:
    """The orders that this router knows.

    Args:
        fleet: Names of replicas, and what runs there.
        directory: Told who is under an order.
        secret: `registration.secret`.
        unix_time: Wall clock in seconds: orders end by it.
    """

    def __init__(
        self,
        fleet: Fleet,
        directory: Directory,
        secret: bytes | None,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._directory = directory
        self._secret = secret
        self._unix_time = unix_time
        self._orders: dict[str, _Order] = {}
        self._undone: set[str] = set()
        self._refused: dict[str, str] = {}
        self.link: RedisLink | None = None
        """The present link to Redis, where there is one."""

    async def drain(self, replica_id: str, for_s: float) -> dict[str, Any] | None:
        """Have a replica take no new requests for `for_s` seconds; what came of it, None where it is not known."""
        replica = self._fleet.replicas.get(replica_id)
        if replica is None or len(self._orders) >= MAX_ORDERS:
            return None
        self._undone.discard(replica_id)
        self._orders[replica_id] = _Order(self._unix_time() + for_s, shared=replica.source == "redis")
        self._directory.drain(replica_id, draining=True)
        LOG.info("draining by order", extra={"replica": replica_id, "for_s": for_s})
        return await self._settle(replica_id)

    async def undo(self, replica_id: str) -> dict[str, Any] | None:
        """End an order; what came of it, None where the replica is not known and under no order."""
        order = self._orders.pop(replica_id, None)
        replica = self._fleet.replicas.get(replica_id)
        if order is None and replica is None:
            return None
        if order.shared if order is not None else replica is not None and replica.source == "redis":
            self._undone.add(replica_id)
        self._directory.drain(replica_id, draining=False)
        LOG.info("free to take requests again, by order", extra={"replica": replica_id})
        return await self._settle(replica_id)

    async def tell(self, link: RedisLink) -> None:
        """Write what Redis was not told yet. Raises what the link raises when it breaks."""
        now = self._unix_time()
        for replica_id in list(self._undone):
            await link.write_drain(replica_id, None, 0)
            self._undone.discard(replica_id)
        for replica_id, order in list(self._orders.items()):
            if order.shared and not order.written and order.until_unix_s > now:
                data = wire.encode(wire.Drain(replica_id, order.until_unix_s), self._secret)
                await link.write_drain(replica_id, data, int((order.until_unix_s - now) * 1000) + 1)
                order.written = True

    async def exchange(self, link: RedisLink, replica_ids: set[str]) -> None:
        """Tell Redis what it does not know, then take what it says of these replicas."""
        try:
            await self.tell(link)
        except (ResponseError, KeyFaultError) as error:
            # Such as rights from before this was written: orders hold here all the same.
            self._refuse("", f"orders to drain can't be written to Redis: {error}")
        self.take(await link.drains(sorted(replica_ids)))

    def take(self, found: Mapping[str, bytes | None]) -> None:
        """Take what Redis holds of these replicas: an order, or None."""
        now = self._unix_time()
        for replica_id, data in found.items():
            order = self._orders.get(replica_id)
            until = self._believed(replica_id, data, now)
            if until is not None and replica_id not in self._undone:
                if order is None and len(self._orders) < MAX_ORDERS:
                    LOG.info("draining by order of another router", extra={"replica": replica_id})
                if order is None or order.written:
                    self._orders[replica_id] = _Order(until, shared=True, written=True)
                    self._directory.drain(replica_id, draining=True)
            elif order is not None and order.written:
                self._end(replica_id)

    def expire(self) -> None:
        """End what is over."""
        now = self._unix_time()
        for replica_id in [name for name, order in self._orders.items() if order.until_unix_s <= now]:
            self._end(replica_id)

    async def run(self) -> None:
        """Expire until cancelled."""
        while True:
            self.expire()
            await asyncio.sleep(EXPIRE_EACH_S)

    def _end(self, replica_id: str) -> None:
        del self._orders[replica_id]
        self._directory.drain(replica_id, draining=False)
        LOG.info("an order to drain ended", extra={"replica": replica_id})

    async def _settle(self, replica_id: str) -> dict[str, Any]:
        """Tell Redis now where that is possible, and describe where things stand."""
        error = None
        if self.link is not None:
            try:
                async with asyncio.timeout(TELL_TIMEOUT_S):
                    await self.tell(self.link)
            except (RedisError, OSError, TimeoutError) as trouble:
                error = f"{type(trouble).__name__}"
        order = self._orders.get(replica_id)
        replica = self._fleet.replicas.get(replica_id)
        shared = order.shared if order is not None else replica is not None and replica.source == "redis"
        told = replica_id not in self._undone and (order is None or order.written)
        return {
            "replica": replica_id,
            "state": "draining" if replica is not None and replica.draining else "ready",
            "until_unix_s": None if order is None else order.until_unix_s,
            "reaches": "fleet" if shared else "this router",
            "told": told if shared else None,
            "error": None if told or not shared else (error or "Redis is not reached: it is told when it is back"),
        }

    def _believed(self, replica_id: str, data: bytes | None, now: float) -> float | None:
        if data is None:
            return None
        try:
            return wire.decode(data, self._secret, replica_id, now).until_unix_s
        except wire.DrainError as error:
            self._refuse(replica_id, str(error))
            return None

    def _refuse(self, replica_id: str, reason: str) -> None:
        if self._refused.get(replica_id) != reason and len(self._refused) < MAX_ORDERS:
            self._refused[replica_id] = reason
            LOG.warning("refused: %s", reason, extra={"replica": replica_id})
