"""Deadlines of everything, looked at together."""

from __future__ import annotations

import asyncio
import time

from router.proxy.deadlines import NEVER, Deadlines


class Late:
    """Its deadline is over; when it ends, so does what another one waits for."""

    def __init__(self) -> None:
        self.deadline_s = time.monotonic() - 1
        self.other: Late | None = None
        self.expired = 0

    def expire(self, now_s: float) -> None:
        self.expired += 1
        self.deadline_s = NEVER
        if self.other is not None:
            self.other.deadline_s = now_s + 60


async def test_whose_deadline_moved_meanwhile_is_not_late() -> None:
    """One that times out makes room for another that waits: that one just went to a replica, which has time anew."""
    deadlines = Deadlines(asyncio.get_running_loop())
    one, two = Late(), Late()
    one.other, two.other = two, one
    deadlines.watch(one)
    deadlines.watch_all([two])
    deadlines._tick()
    deadlines.close()
    assert one.expired + two.expired == 1
