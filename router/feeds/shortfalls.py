"""Tells agents which blocks their engines did not find, through Redis: a short list a unit, which ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redis.exceptions import ResponseError

from router.feeds.redis_link import RedisLink
from router.feeds.roster import Roster
from router.index.shortfalls import Shortfalls
from router.kv import doubts
from router.telemetry.metrics import Metrics

TELL_EACH_S = 0.25


class ShortfallTeller:
    """See the module.

    Args:
        shortfalls: What waits to be told.
        roster: Whose epochs the agents write.
        clock: The router's clock, in seconds.
    """

    def __init__(self, shortfalls: Shortfalls, roster: Roster, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._shortfalls = shortfalls
        self._roster = roster
        self._metrics = metrics
        self._clock = clock

    async def run(self, link: RedisLink) -> None:
        """Tell until the link breaks."""
        while True:
            for item in self._shortfalls.take():
                member = self._roster.member_of(item.unit_id)
                if member is None:
                    continue
                age_s = max(0.0, self._clock() - item.placed_s)
                doubt = doubts.Doubt(member.units[item.unit_id].registration.epoch, age_s, item.blocks)
                try:
                    await link.write_doubt(item.unit_id, doubts.encode(doubt))
                except ResponseError:
                    continue  # rights from before this was written, or a key of another type
                self._metrics.shortfall_told(len(item.blocks))
            await asyncio.sleep(TELL_EACH_S)
