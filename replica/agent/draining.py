"""Leaving in order: told to the routers first, then what runs finishes, then the lease goes, then the engine.

Whether what runs has finished, the engine's own figures say: nothing running and nothing waiting in two scrapes in a
row, both begun after the routers were told. A scrape that fails says nothing. An engine without these figures is waited
for as long as `--drain-s` allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from router.kv import drains
from router.kv.client.client import RedisClient, RedisError
from router.kv.engine_metrics import Load
from router.kv.keys import Keys

log = logging.getLogger(__name__)

IDLE_SCRAPES = 2
TOLD_MARGIN_S = 0.25
"""A router reads a lane within milliseconds; what it sent just before is at the engine by then."""
TELL_S = 2.0
"""How long Redis may take to be told; then what runs is waited for all the same."""
ORDERS_S = 1.0
ORDER_TIMEOUT_S = 2.0


class IdleWatch:
    """Counts scrapes that show an engine without requests. Pure: times are `time.monotonic()` parameters.

    Args:
        began_s: When draining began.
    """

    def __init__(self, began_s: float) -> None:
        self._count_from_s = began_s + TELL_S + TOLD_MARGIN_S
        self._told = False
        self._idle = 0

    @property
    def is_idle(self) -> bool:
        """Whether all that ran has finished."""
        return self._idle >= IDLE_SCRAPES

    def told(self, now_s: float) -> None:
        """The routers were told, by now; what comes later changes nothing."""
        if not self._told:
            self._told = True
            self._count_from_s = min(self._count_from_s, now_s + TOLD_MARGIN_S)

    def saw(self, loads: Mapping[str, Load] | None, began_s: float) -> None:
        """Take a scrape that began at `began_s`; None is one that failed."""
        if began_s < self._count_from_s:
            return
        quiet = bool(loads) and all(load.running + load.waiting == 0 for load in (loads or {}).values())
        self._idle = self._idle + 1 if quiet else 0


class DrainOrders:
    """Whether an operator, at a router, has this replica take no new requests.

    Args:
        redis: Shared client.
        keys: Names.
        replica_id: This replica.
        secret: With one, an order that is unsigned or signed with another secret is void.
    """

    def __init__(self, redis: RedisClient, keys: Keys, replica_id: str, secret: bytes | None) -> None:
        self._redis = redis
        self._key = keys.drain(replica_id)
        self._replica_id = replica_id
        self._secret = secret
        self._until_unix_s = 0.0
        self._refused: str | None = None

    def hold(self, now_unix_s: float) -> bool:
        """Tell whether an order stands."""
        return now_unix_s < self._until_unix_s

    async def run(self) -> None:
        """Look each second until cancelled. While Redis is away, what was ordered stands until its own end."""
        while True:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(ORDER_TIMEOUT_S):
                    await self.look()
            await asyncio.sleep(ORDERS_S)

    async def look(self) -> None:
        """Read the order. Raises what redis-py raises."""
        data: Any = await self._redis.run(self._key, "GET", self._key)
        was = self._until_unix_s
        self._until_unix_s = 0.0 if data is None else self._end(data)
        if bool(was) != bool(self._until_unix_s):
            text = "ordered to take no new requests" if self._until_unix_s else "free to take requests again"
            log.info(text, extra={"replica": self._replica_id})

    def _end(self, data: bytes) -> float:
        try:
            return drains.decode(data, self._secret, self._replica_id, time.time()).until_unix_s
        except drains.DrainError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning(f"not obeyed: {error}", extra={"replica": self._replica_id})
            return 0.0
