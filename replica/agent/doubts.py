"""Hears from routers which blocks the engine did not find, and corrects what is believed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from replica.agent.metrics import AgentMetrics
from replica.agent.unit import UnitState
from router.kv import doubts
from router.kv.client.client import RedisClient, RedisError
from router.kv.keys import Keys
from router.kv.wire import Change

log = logging.getLogger(__name__)

LOOK_EACH_S = 1.0
TIMEOUT_S = 2.0
SLACK_S = 2.0
"""Events may be ahead of the answer that they belong to, and were received before they are read."""


class DoubtReader:
    """One unit's.

    Args:
        unit: What is corrected.
        epoch: The one that is published now.
        publish: Takes what changed.
    """

    def __init__(
        self,
        redis: RedisClient,
        keys: Keys,
        unit: UnitState,
        epoch: Callable[[], int],
        publish: Callable[[Sequence[Change], float], None],
        metrics: AgentMetrics,
    ) -> None:
        self._redis = redis
        self._key = keys.doubts(unit.unit_id)
        self._unit = unit
        self._epoch = epoch
        self._publish = publish
        self._metrics = metrics
        self._looked_s: float | None = None

    async def run(self) -> None:
        """Look each second until cancelled. Redis trouble is the sink's to tell."""
        while True:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    await self.look()
            await asyncio.sleep(LOOK_EACH_S)

    async def look(self) -> None:
        """Take what routers wrote. Raises what the client raises."""
        began_s = time.monotonic()
        found = await self._redis.run(self._key, "LPOP", self._key, doubts.MAX_KEPT)
        # What is there now was written after the last look; however long Redis kept it from us.
        written_s, self._looked_s = self._looked_s, began_s
        for data in found or ():
            doubt = doubts.decode(data)
            if doubt is not None and written_s is not None and doubt.epoch == self._epoch():
                self._correct(doubt, written_s)

    def _correct(self, doubt: doubts.Doubt, written_s: float) -> None:
        """Take a doubt that was written at `written_s` or later."""
        now_s = time.monotonic()
        changes = self._unit.disbelieve(doubt.blocks, written_s - doubt.age_s - SLACK_S)
        gone = sum(len(change.hashes) for change in changes)
        if changes:
            self._publish(changes, now_s)
            self._metrics.disbelieved.labels(self._unit.unit_id).inc(gone)
            log.info("blocks were not in the cache", extra={"unit": self._unit.unit_id, "blocks": gone})
