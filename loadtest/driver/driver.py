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
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadtest.driver.client import Client
from loadtest.driver.generator import Generator, Ticks, judge
from loadtest.driver.records import Record
from loadtest.report.percentiles import quantile
from loadtest.workloads.answers import StreamedAnswer, chat_body
from loadtest.workloads.conversations import Session
from loadtest.workloads.schedule import Lane, Stage


@dataclass(frozen=True, slots=True)
class Sending:
    """How requests are sent.

    Attributes:
        model: To ask for.
        stream: Whether answers are streamed.
        time_scale: Virtual seconds that pass in one real second, over 0: for simulated engines that run as much faster.
            Arrivals, pauses and records are in virtual seconds.
        warm_up_s: Requests that are due before are sent, and not measured.
        until_s: No request is sent after it; None: all are.
        more: More fields of each body.
    """

    model: str
    stream: bool = True
    time_scale: float = 1.0
    warm_up_s: float = 0.0
    until_s: float | None = None
    more: Mapping[str, Any] | None = None


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
        self._stage_ends = _ends(stages)
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

    def _now_s(self) -> float:
        return (self._clock() - self.zero_s) * self._sending.time_scale

    async def _until(self, due_s: float) -> None:
        wait_s = due_s - self._now_s()
        while wait_s > 0:
            await asyncio.sleep(wait_s / self._sending.time_scale)
            wait_s = due_s - self._now_s()  # the loop's timers may be a millisecond early

    async def _work_through(self, lane: Lane[Session]) -> None:
        await self._until(lane.start_s)
        due_s = lane.start_s
        for session in lane.sessions:
            ended_s = await self._hold(session, due_s)
            if ended_s is None:
                return
            due_s = ended_s

    async def _hold(self, session: Session, due_s: float) -> float | None:
        """Hold one session; return when it ended, or None when the run's time is over."""
        stage = sum(due_s >= end_s for end_s in self._stage_ends)
        answers: list[str] = []
        for number, turn in enumerate(session.turns):
            due_s += turn.think_s
            if self._sending.until_s is not None and due_s > self._sending.until_s:
                return None
            messages = session.messages(number, answers if session.remembers else [])
            body = chat_body(self._sending.model, messages, turn.answer_tokens, self._sending.stream)
            body |= self._sending.more or {}
            await self._until(due_s)
            record = Record(session.session_id, number, session.kind, stage, due_s, self._now_s())
            self.records.append(record)
            answer = await self._send(record, body)
            if self._on_answered is not None:
                self._on_answered(record, messages, answer)
            due_s += record.total_s
            if record.cause is not None:
                break
            answers.append(answer.text)
        return due_s

    async def _send(self, record: Record, body: Mapping[str, Any]) -> StreamedAnswer:
        reply = await self._client.send(body, self._now_s)
        record.total_s = self._now_s() - record.intended_s
        pieces_s, answer = reply.pieces_s, reply.answer
        if pieces_s:
            record.ttft_s = pieces_s[0] - record.intended_s
            record.gaps_s.extend(after - before for before, after in pairwise(pieces_s))
        record.status, record.replica, record.matched_tokens = reply.status, reply.replica, reply.matched_tokens
        record.prompt_tokens, record.output_tokens = answer.prompt_tokens, answer.completion_tokens
        record.cached_tokens = answer.cached_tokens
        record.cause, record.message = reply.cause, reply.message
        return answer


def _ends(stages: Sequence[Stage]) -> list[float]:
    """Return when each stage but the last ends."""
    ends_s: list[float] = []
    for stage in stages[:-1]:
        ends_s.append((ends_s[-1] if ends_s else 0.0) + stage.duration_s)
    return ends_s
