"""Routers tell each other what is asked of them, and divide each tenant's limits by that.

One hash in Redis: a field for each router, written and read as a whole each second. No clock is compared: a router is
there while its field changes. Nothing here is on a request's path; where Redis is away, the last shares hold for a
while, and then each router has an equal part.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from redis.exceptions import ResponseError

from router.feeds.redis_link import KeyFaultError, RedisLink
from router.request.auth.limits import TenantLimits
from router.request.auth.shares import share_of

LOG = logging.getLogger("warmroute.feeds")
EVERY_S = 1.0
GONE_S = 5.0
"""A router whose field has not changed for this long gets no share."""
FORGET_S = 60.0
"""And its field is taken away after this."""
HOLD_S = 10.0
"""Shares hold for so long without Redis."""
MEMORY_S = 10.0
"""What was asked is averaged over about this."""
MAX_ROUTERS = 1_000
MAX_MESSAGE_BYTES = 2**20

Demand = dict[str, float]
"""Units asked for a minute, by `TENANT KIND`."""


class Message(msgspec.Struct, array_like=True):
    """A router's field.

    Attributes:
        count: Grows with each message.
        asked_per_minute: What is asked of it.
    """

    count: int
    asked_per_minute: Demand


@dataclass(slots=True)
class _Router:
    """Another router, as its field shows it."""

    count: int
    changed_s: float
    asked_per_minute: Demand


class RateExchange:
    """One router's side.

    Args:
        limits: Told its shares.
        name: This process among routers; random if left out.
    """

    def __init__(
        self, limits: TenantLimits, clock: Callable[[], float] = time.monotonic, name: str | None = None
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._name = name or os.urandom(8).hex()
        self._count = 0
        self._routers: dict[str, _Router] = {}
        self._asked: dict[tuple[str, str], float] = {}
        self._demand: dict[tuple[str, str], float] = {}
        self._looked_s: float | None = None
        self._exchanged_s: float | None = None
        self._refused = False

    @property
    def routers(self) -> int:
        """Routers that share, this one among them."""
        return len(self._live()) + 1

    async def run(self, link: RedisLink) -> None:
        """Exchange until cancelled. Raises what the link raises when it breaks."""
        while True:
            await self.exchange(link)
            await asyncio.sleep(EVERY_S)

    async def watch(self) -> None:
        """Let shares end when Redis is away for too long, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.expire()

    async def exchange(self, link: RedisLink) -> None:
        """Tell, hear, divide; nothing where no tenant has a limit."""
        limits = self._limits.per_minute()
        if not limits:
            return
        self._measure()
        self._count += 1
        asked = {" ".join(key): round(value, 3) for key, value in self._demand.items() if value > 0}
        now_s = self._clock()
        gone = [name for name, router in self._routers.items() if now_s - router.changed_s > FORGET_S]
        try:
            fields = await link.exchange_rates(self._name, msgspec.msgpack.encode(Message(self._count, asked)), gone)
        except (ResponseError, KeyFaultError) as error:
            if not self._refused:
                # Such as rights from before this was written: each router's limits are its own then.
                LOG.warning("tenants' limits can't be shared through Redis: %s", error)
            self._refused = True
            return
        self._refused = False
        self._take(fields)
        self._exchanged_s = self._clock()
        self._divide(limits)

    def expire(self) -> None:
        """Divide equally where nothing was heard for too long."""
        if self._exchanged_s is None or self._clock() - self._exchanged_s < HOLD_S:
            return
        self._exchanged_s = None
        equal = 1.0 / (len(self._routers) + 1)
        self._limits.share(dict.fromkeys(self._limits.per_minute(), equal), self._clock())

    def _measure(self) -> None:
        now_s, asked = self._clock(), self._limits.asked()
        elapsed_s = EVERY_S if self._looked_s is None else max(1e-3, now_s - self._looked_s)
        weight = min(1.0, elapsed_s / MEMORY_S)
        for key, total in asked.items():
            rate = (total - self._asked.get(key, 0.0)) * 60 / elapsed_s
            self._demand[key] = self._demand.get(key, 0.0) + weight * (rate - self._demand.get(key, 0.0))
        self._demand = {key: value for key, value in self._demand.items() if key in asked}
        self._asked, self._looked_s = asked, now_s

    def _take(self, fields: Mapping[str, bytes]) -> None:
        now_s = self._clock()
        for name in [name for name in self._routers if name not in fields]:
            del self._routers[name]
        for name, data in list(fields.items())[:MAX_ROUTERS]:
            if name == self._name or len(data) > MAX_MESSAGE_BYTES:
                continue
            try:
                message = msgspec.msgpack.decode(data, type=Message)
            except msgspec.MsgspecError:
                continue
            known = self._routers.get(name)
            if known is None:
                self._routers[name] = _Router(message.count, now_s, message.asked_per_minute)
            elif known.count != message.count:
                known.count, known.changed_s = message.count, now_s
                known.asked_per_minute = message.asked_per_minute

    def _live(self) -> list[_Router]:
        now_s = self._clock()
        return [router for router in self._routers.values() if now_s - router.changed_s < GONE_S]

    def _divide(self, limits: Mapping[tuple[str, str], float]) -> None:
        live = self._live()
        shares = {
            key: share_of(
                self._demand.get(key, 0.0),
                [router.asked_per_minute.get(" ".join(key), 0.0) for router in live],
                limit,
            )
            for key, limit in limits.items()
        }
        self._limits.share(shares, self._clock())
