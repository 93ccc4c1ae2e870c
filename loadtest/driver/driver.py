"""Lanes of sessions against one endpoint, in open or closed loop.

No coordinated omission: each request has a time at which it should be sent, known without looking at how the system
does, and its times count from there. The first request of a session that arrives by itself is due at its arrival,
however busy system and generator are; a later one when its user has read the answer before and thought. A lane of a
closed loop is one user, whose next session is due when the last one ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from loadtest.driver.client import Client
from loadtest.driver.generator import Generator, Ticks, judge
from loadtest.driver.holding import Holding, Sending, stage_of
from loadtest.driver.records import Record
from loadtest.report.percentiles import quantile
from loadtest.workloads.answers import StreamedAnswer
from loadtest.workloads.conversations import Session
from loadtest.workloads.schedule import Lane, Stage


class Driver:
    """One run.

    Attributes:
        zero_s: When it started, by its clock.
        records: Of all requests, in the order in which they were sent.
    """

    def __init__(
        self,
        client: Client,
        sending: Sending,
        stages: Sequence[Stage] = (),
        on_answered: Callable[[Record, Sequence[Mapping[str, str]], StreamedAnswer], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Describe a run.

        Args:
            stages: Of arrivals, which records are told apart by.
            on_answered: Called with each record, what was sent and what came.
            clock: In real seconds. Not the loop's: uvloop's has whole milliseconds, and stands still in each iteration.
        """
        self.records: list[Record] = []
        self._client = client
        self._sending = sending
        self._stages = stages
        self._on_answered = on_answered
        self._clock = clock
        self._ticks = Ticks(clock)
        self.zero_s = 0.0
        self.cpu_share = 0.0

    async def run(self, lanes: Iterable[Lane[Session]]) -> None:
        """Send everything; return when the last answer has ended. A failed request ends its session, not the run."""
        prepared = list(lanes)  # before the clock starts: making prompts takes time
        watching = asyncio.create_task(self._ticks.watch())
        self.zero_s = self._clock()
        try:
            async with asyncio.TaskGroup() as group:
                for lane in prepared:
                    group.create_task(self._work_through(lane))
        finally:
            self.cpu_share = self._ticks.cpu_share()
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    @property
    def measured(self) -> list[Record]:
        """Records without the warm-up's."""
        return [record for record in self.records if record.intended_s >= self._sending.warm_up_s]

    def generator(self) -> Generator:
        """Judge whether the generator kept up."""
        scale, measured = self._sending.time_scale, self.measured
        ttfts_s = [record.ttft_s / scale for record in measured if record.ttft_s is not None]
        median_s = quantile(ttfts_s, 0.5) if ttfts_s else None
        return judge([record.late_s / scale for record in measured], self._ticks.lags_s, median_s, self.cpu_share)

    def now_s(self) -> float:
        """Return the virtual seconds since the start."""
        return (self._clock() - self.zero_s) * self._sending.time_scale

    async def wait_until(self, due_s: float) -> None:
        """Wait until so many virtual seconds after the start."""
        wait_s = due_s - self.now_s()
        while wait_s > 0:
            await asyncio.sleep(wait_s / self._sending.time_scale)
            wait_s = due_s - self.now_s()  # the loop's timers may be a millisecond early

    async def _work_through(self, lane: Lane[Session]) -> None:
        await self.wait_until(lane.start_s)
        due_s = lane.start_s
        for session in lane.sessions:
            ended_s = await self._hold(session, due_s)
            if ended_s is None:
                return
            due_s = ended_s

    async def _hold(self, session: Session, due_s: float) -> float | None:
        """Hold one session; return when it ended, or None when the run's time is over."""
        holding = Holding(session, due_s, stage_of(self._stages, due_s), self._sending)
        while (request := holding.next()) is not None:
            record = request.record
            await self.wait_until(record.intended_s)
            record.sent_s = self.now_s()
            self.records.append(record)
            reply = await self._client.send(request.body, self.now_s, request.key)
            holding.take(request, reply, self.now_s())
            if self._on_answered is not None:
                self._on_answered(record, request.messages, reply.answer)
        return None if holding.over else holding.due_s
