"""Runs one core in real time: sleeps as long as the imagined hardware would compute.

A step's end is planned from the end of the step before, not from when this process happened to wake up, so timer
granularity and a late wake-up do not add up: over a busy second the engine does a second's work. It catches up on at
most `_MOST_LAG_S`; what a starved machine lacks beyond that is lost time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from replica.simengine.core.events import CacheEvent
from replica.simengine.core.request import Request
from replica.simengine.core.scheduler import Scheduler
from replica.simengine.core.timing import Timing

_MOST_LAG_S = 0.25


class Engine:
    """One data-parallel rank.

    Attributes:
        scheduler: Its core.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        timing: Timing,
        time_scale: float,
        publish: Callable[[list[CacheEvent]], None],
        on_token: Callable[[], None],
    ) -> None:
        """Put a core into real time.

        Args:
            time_scale: Virtual seconds that pass in one real second, above 0.
            publish: Called after each step that changed the cache, before its tokens are delivered.
            on_token: Called for each token delivered.
        """
        self.scheduler = scheduler
        self._timing = timing
        self._scale = time_scale
        self._publish = publish
        self._on_token = on_token
        self._sinks: dict[Request, Callable[[], None]] = {}
        self._work = asyncio.Event()

    @property
    def load(self) -> int:
        """Requests running and waiting."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def submit(self, request: Request, sink: Callable[[], None]) -> None:
        """Queue a request; `sink` is called after each of its tokens."""
        self.scheduler.add(request, time.monotonic() * self._scale)
        self._sinks[request] = sink
        self._work.set()

    def end(self, request: Request, reason: str) -> None:
        """Stop working on a request, if it is not finished; its sink is not called again."""
        self._sinks.pop(request, None)
        self.scheduler.abort(request, reason)

    async def run(self) -> None:
        """Step for ever."""
        ends_s = 0.0
        while True:
            if not self.scheduler.has_work:
                self._work.clear()
                await self._work.wait()
                ends_s = 0.0
            step = self.scheduler.schedule()
            now_s = time.monotonic()
            ends_s = max(ends_s, now_s - _MOST_LAG_S) if ends_s else now_s
            ends_s += self._timing.step_s(step) / self._scale
            await asyncio.sleep(max(0.0, ends_s - now_s))
            advanced = self.scheduler.complete(step, ends_s * self._scale)
            events = self.scheduler.take_events()
            if events:
                self._publish(events)
            for request in advanced:
                self._deliver(request)

    def _deliver(self, request: Request) -> None:
        self._on_token()
        sink = self._sinks.get(request)
        if request.finish_reason is not None:
            self._sinks.pop(request, None)
        if sink is not None:
            sink()
