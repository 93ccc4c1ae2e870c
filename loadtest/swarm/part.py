"""A worker's part of the traffic: sessions that arrive at their times, or users that take the next one.

Times count from when each request was due, as in the driver of `make loadtest`, and sessions are the same as there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import gevent
from gevent.event import Event
from gevent.pool import Group

from loadtest.driver.generator import TICK_S, Ticks
from loadtest.driver.holding import Holding, Request, Sending, stage_of
from loadtest.driver.records import Record
from loadtest.driver.reply import Reply
from loadtest.workloads.conversations import Session
from loadtest.workloads.schedule import Lane
from loadtest.workloads.traffic import Share, Traffic


class Client(Protocol):
    """Sends one request; never raises for what went wrong, but tells it in the reply."""

    def send(self, body: dict[str, object], clock: Callable[[], float], key: str = "") -> Reply:
        """Send it and wait for the whole answer."""


class Part:
    """One worker's.

    Attributes:
        begun: Set when all workers begin.
        timeout_s: Of a request, as its client needs it.
        finished: Set when its share is used up and all its sessions have ended.
    """

    def __init__(
        self,
        traffic: Traffic,
        sending: Sending,
        tokenizer: Path,
        is_open: bool,
        on_answered: Callable[[Record], None],
        limit: int | None = None,
    ) -> None:
        """Describe it.

        Args:
            is_open: Whether sessions arrive by themselves, rather than being taken by users.
            on_answered: Called with the record of each request after the warm-up.
            limit: Sessions that users of all workers take together; None: no limit.
        """
        self.begun = Event()
        self.finished = Event()
        self.timeout_s = sending.timeout_s
        self._traffic = traffic
        self._sending = sending
        self._tokenizer = tokenizer
        self._open = is_open
        self._on_answered = on_answered
        self._limit = limit
        self._zero_s = 0.0
        self._lanes: Sequence[Lane[Session]] = ()
        self._sessions: Iterator[Session] = iter(())
        self._held = 0
        self._conducted = False

    def prepare(self, share: Share) -> None:
        """Make what can be made before; for arrivals these are all prompts, which takes time."""
        self.begun.clear()
        self.finished.clear()
        self._conducted = False
        if self._open:
            self._lanes = self._traffic.lanes(self._tokenizer, share)
            return
        sessions = self._traffic.make_sessions(self._tokenizer, share)
        count = None if self._limit is None else len(range(share.number, self._limit, share.of))
        self._sessions = itertools.islice(sessions, count)

    def begin(self) -> None:
        """Let all users begin."""
        self._zero_s = time.perf_counter()
        self.begun.set()

    def serve(self, client: Client) -> None:
        """Be one user, until the share is used up: then wait to be stopped. The first one conducts arrivals."""
        self.begun.wait()
        if not self._open:
            self._work_through(client)
        elif not self._conducted:
            self._conducted = True
            self._conduct(client)
        Event().wait()

    def _work_through(self, client: Client) -> None:
        due_s = self._now_s()
        for session in self._sessions:
            self._held += 1
            due_s = self._hold(client, session, due_s)
            self._held -= 1
        if not self._held:
            self.finished.set()

    def _conduct(self, client: Client) -> None:
        sessions = Group()
        try:
            for lane in self._lanes:
                self._wait_until(lane.start_s)
                for session in lane.sessions:
                    sessions.spawn(self._hold, client, session, lane.start_s)
            sessions.join()
            self.finished.set()
        finally:
            sessions.kill()

    def _hold(self, client: Client, session: Session, due_s: float) -> float:
        holding = Holding(session, due_s, stage_of(self._traffic.stages, due_s), self._sending)
        while (request := holding.next()) is not None:
            self._wait_until(request.record.intended_s)
            self._send(client, holding, request)
        return holding.due_s

    def _send(self, client: Client, holding: Holding, request: Request) -> None:
        record = request.record
        record.sent_s = self._now_s()
        reply = client.send(dict(request.body), self._now_s, request.key)
        holding.take(request, reply, self._now_s())
        if record.intended_s >= self._sending.warm_up_s:
            self._on_answered(record)

    def _now_s(self) -> float:
        return time.perf_counter() - self._zero_s

    def _wait_until(self, due_s: float) -> None:
        while (wait_s := due_s - self._now_s()) > 0:
            gevent.sleep(wait_s)


def watch(ticks: Ticks) -> None:
    """Tick until killed, to see how late this process' event loop runs."""
    ticks.begin()
    while True:
        due_s = time.perf_counter() + TICK_S
        gevent.sleep(TICK_S)
        ticks.note(due_s)


def with_salt(sending: Sending, salt: str) -> Sending:
    """Return it with a cache salt, so that a run does not find what the one before left in the caches."""
    return replace(sending, more={"cache_salt": salt}) if salt else sending
