"""Requests that wait for a replica with room, and whose turn it is when there is some.

Room is made by requests that end, by replicas that join or come back. The first is told at once, the others are found
by looking ten times a second. Nothing that comes meanwhile gets ahead: who finds a line joins it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from router.errors import QueueFullError, TenantQueueFullError, WarmrouteError
from router.proxy.deadlines import NEVER, Deadlines
from router.proxy.exchange import Account
from router.proxy.seams import Records
from router.request.prompt import Prompt
from router.scheduling.waiting_room import NOBODY, Ticket, WaitingRoom

LOOK_EVERY_S = 0.1


class Patient(Protocol):
    """A request that waits."""

    def take_turn(self) -> bool:
        """Its turn: go on to a replica, or be refused; False when there is still no room."""

    def turned_away(self, error: WarmrouteError) -> None:
        """Another request has its place now."""


class Waiting:
    """The waiting room on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines, recorder: Records, limit: int, queue_s: float
    ) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._recorder = recorder
        self._room: WaitingRoom[Patient] = WaitingRoom(limit)
        self.queue_s = queue_s
        self._is_called = False
        self.deadline_s = NEVER

    def __len__(self) -> int:
        return len(self._room)

    def configure(self, limit: int, queue_s: float) -> None:
        """Take over other bounds, for whoever comes from now on."""
        self._room.limit = limit
        self.queue_s = queue_s

    def has_line(self, model: str | None) -> bool:
        """Tell whether others wait for this model already."""
        return self._room.has_line(model)

    def enter(self, patient: Patient, prompt: Prompt, account: Account | None) -> Ticket[Patient]:
        """Let a request wait; `take_turn` is called later.

        Raises:
            QueueFullError, TenantQueueFullError: There is no place.
        """
        now_s = time.monotonic()
        if account is None:
            cost = prompt.tokens + prompt.other_tokens + prompt.n * (prompt.max_tokens or 0)
            ticket = Ticket(patient, prompt.model, now_s, priority=prompt.priority or 0, cost_tokens=cost)
        else:
            ticket = Ticket(
                patient,
                prompt.model,
                now_s,
                tenant=account.name,
                weight=account.weight,
                priority=account.priority,
                cost_tokens=account.cost_tokens,
            )
        evicted = self._room.enter(ticket)
        if evicted is not None:
            self._left(evicted)
            has_tenant = evicted.tenant != NOBODY
            error = TenantQueueFullError if has_tenant and evicted.tenant != ticket.tenant else QueueFullError
            evicted.owner.turned_away(error("the queue is full, and others come first", retry_after_s=1))
        self._recorder.queue_changed(len(self._room))
        if self.deadline_s == NEVER:
            self.deadline_s = now_s + LOOK_EVERY_S
            self._deadlines.watch(self)
        return ticket

    def leave(self, ticket: Ticket[Patient]) -> None:
        """A request waits no more: its client left, or its time is over."""
        if ticket.waits:
            self._room.leave(ticket)
            self._left(ticket)

    def room_made(self) -> None:
        """A request ended: have the next one placed, after whatever runs now."""
        if self._room and not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._call)

    def expire(self, now_s: float) -> None:
        """Look whether a replica has joined or come back."""
        self._call()
        if self._room:
            self.deadline_s = now_s + LOOK_EVERY_S
        else:
            self.deadline_s = NEVER
            self._deadlines.unwatch(self)

    def _call(self) -> None:
        self._is_called = False
        for model in self._room.models():
            while (ticket := self._room.next(model)) is not None:
                # Whoever is refused in its turn leaves by itself; else it would be called for ever.
                if not ticket.owner.take_turn():
                    break
                if ticket.waits:
                    self._room.served(ticket)
                    self._left(ticket)

    def _left(self, ticket: Ticket[Patient]) -> None:
        self._recorder.queue_left(time.monotonic() - ticket.since_s)
        self._recorder.queue_changed(len(self._room))
