"""One session, turn by turn, without I/O: what to send when, and what came of it. Any kind of event loop drives it.

holding = Holding(session, due_s, stage, sending)
while (request := holding.next()) is not None:
    ...wait until request.record.intended_s, send request.body...
    holding.take(request, reply, now_s)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from loadtest.driver.records import Record
from loadtest.driver.reply import Reply
from loadtest.workloads.answers import chat_body
from loadtest.workloads.callers import Callers
from loadtest.workloads.conversations import Session
from loadtest.workloads.schedule import Stage


@dataclass(frozen=True, slots=True)
class Sending:
    """How requests are sent.

    Attributes:
        callers: Whose they are.
        stream: Whether answers are streamed.
        time_scale: Virtual seconds that pass in one real second, over 0: for simulated engines that run as much faster.
            Arrivals, pauses and records are in virtual seconds.
        warm_up_s: Requests that are due before are sent, and not measured.
        until_s: No request is sent after it; None: all are.
        more: More fields of each body.
        timeout_s: A request whose answer is not complete by then has failed.
    """

    callers: Callers
    stream: bool = True
    time_scale: float = 1.0
    warm_up_s: float = 0.0
    until_s: float | None = None
    more: Mapping[str, Any] | None = None
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent next.

    Attributes:
        record: Its intended time is known; all else is filled in by `Holding.take`, but for `sent_s`.
        messages: Of its chat.
        body: Of its POST.
        key: Sent as bearer token; empty: none.
    """

    record: Record
    messages: Sequence[Mapping[str, str]]
    body: Mapping[str, Any]
    key: str = field(default="", repr=False)


class Holding:
    """A session that is being held.

    Attributes:
        due_s: When its next request is due; in the end, when it ended.
        over: Whether the run's time ended before it did.
    """

    def __init__(self, session: Session, due_s: float, stage: int, sending: Sending) -> None:
        """Begin a session that is due at `due_s`, in a stage of arrivals."""
        self.due_s = due_s
        self.over = False
        self._session = session
        self._stage = stage
        self._sending = sending
        self._caller = sending.callers.of(session.session_id)
        self._answers: list[str] = []
        self._turn = 0
        self._failed = False

    def next(self) -> Request | None:
        """Return the next request; None: the session has ended. A failed request ends it."""
        session, number = self._session, self._turn
        if self._failed or number == len(session.turns):
            return None
        turn = session.turns[number]
        self.due_s += turn.think_s
        if self._sending.until_s is not None and self.due_s > self._sending.until_s:
            self.over = True
            return None
        messages = session.messages(number, self._answers if session.remembers else [])
        body = chat_body(self._caller.model, messages, turn.answer_tokens, self._sending.stream)
        body |= self._sending.more or {}
        record = Record(session.session_id, number, session.kind, self._stage, self.due_s, self.due_s)
        record.model, record.tenant = self._caller.model, self._caller.tenant
        return Request(record, messages, body, self._caller.key)

    def take(self, request: Request, reply: Reply, now_s: float) -> None:
        """Take what came of it by `now_s`."""
        record, pieces_s, answer = request.record, reply.pieces_s, reply.answer
        record.total_s = now_s - record.intended_s
        if pieces_s:
            record.ttft_s = pieces_s[0] - record.intended_s
            record.gaps_s.extend(after - before for before, after in pairwise(pieces_s))
        record.status, record.replica, record.matched_tokens = reply.status, reply.replica, reply.matched_tokens
        record.prompt_tokens, record.output_tokens = answer.prompt_tokens, answer.completion_tokens
        record.cached_tokens = answer.cached_tokens
        record.cause, record.message = reply.cause, reply.message
        self.due_s += record.total_s
        self._failed = record.cause is not None
        self._answers.append(answer.text)
        self._turn += 1


def stage_of(stages: Sequence[Stage], at_s: float) -> int:
    """Return which stage of arrivals a time lies in; what comes after the last one is the last one's."""
    ends_s = 0.0
    for number, stage in enumerate(stages[:-1]):
        ends_s += stage.duration_s
        if at_s < ends_s:
            return number
    return max(0, len(stages) - 1)
