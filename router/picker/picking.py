"""One request of a gateway's on its way to an endpoint: read, place, wait where all are full, account.

The same reader, placement, queue and records as the data plane's; only the traffic is the gateway's. So what came of a
request is known as far as the gateway tells: the status, and when the answer began and ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from router.errors import NoRoomError, QueueTimeoutError, WarmrouteError
from router.picker.messages import Choice
from router.placement import Placement
from router.proxy.deadlines import NEVER
from router.proxy.exchange import Request
from router.proxy.forward import Forwarder
from router.proxy.prompts import Cancellable
from router.proxy.waiting import Patient, Waiting
from router.request.prompt import Prompt
from router.scheduling.decision import Outcome
from router.scheduling.waiting_room import Ticket
from router.telemetry.recorder import RequestFacts

_log = logging.getLogger(__name__)


class Picking:
    """Chooses an endpoint for a request, and keeps count of it until it ends.

    It is a patient of the waiting room, and has the queue's deadline.

    Args:
        excluded: Replicas that the gateway does not allow.
        placed: Called once it has a place.
        failed: Called instead when none may take it.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        request: Request,
        excluded: Sequence[str],
        placed: Callable[[], None],
        failed: Callable[[WarmrouteError], None],
    ) -> None:
        self._forwarder = forwarder
        self._placed = placed
        self._failed = failed
        self.request = request
        self._excluded = excluded
        self._prompting: Cancellable | None = None
        self._prompt: Prompt | None = None
        self._ticket: Ticket[Patient] | None = None
        self._waiting: Waiting | None = None
        self.placement: Placement | None = None
        self._status: int | None = None
        self._began_s: float | None = None
        self.deadline_s = NEVER
        forwarder.recorder.accepted()
        forwarder.begun += 1

    def begin(self) -> None:
        """Choose a replica and count the request there; `finish` must follow, however this ends."""
        request = self.request
        prompts = self._forwarder.prompts
        self._prompting = prompts.begin(request.path, request.body, self._prompt_read, self._not_read)

    def choice(self, fallbacks: int) -> Choice:
        """Return where it goes and, next best first, so many others that could have taken it."""
        placement = self.placement
        assert placement is not None  # noqa: S101 - for the type alone: it was placed
        replicas = self._forwarder.fleet.replicas
        endpoints = [endpoint_of(placement.replica.address)]
        for candidate in sorted(placement.decision.candidates, key=lambda candidate: candidate.cost):
            if len(endpoints) > fallbacks:
                break
            other = replicas.get(candidate.replica_id)
            if other is not None and endpoint_of(other.address) not in endpoints:
                endpoints.append(endpoint_of(other.address))
        return Choice(endpoints, placement.unit.rank if len(placement.replica.units) > 1 else None)

    @property
    def has_answer(self) -> bool:
        """Whether the engine's answer began."""
        return self._began_s is not None

    def answer_began(self, status: int | None) -> None:
        """The engine's answer began."""
        self._status = status
        self._began_s = time.monotonic()
        if self.placement is not None and self._prompt is not None and self._prompt.stream and status == 200:
            self._forwarder.placer.first_token(self.placement, self._began_s)

    def finish(self, status: int | None = None, error: str | None = None, *, aborted: bool = False) -> None:
        """It ended; the place is given back and the request is recorded.

        Args:
            status: What the client got from here; None: what the engine answered.
            error: The router's error code.
            aborted: The gateway left before there was an answer.
        """
        if self._prompting is not None:
            self._prompting.cancel()
            self._prompting = None
        self._leave_queue()
        request, now_s, prompt = self.request, time.monotonic(), self._prompt
        ttft_s = None if self._began_s is None else self._began_s - request.arrived_s
        total_s = now_s - request.arrived_s
        outcome = Outcome(status or self._status, error, None, None, None, ttft_s, total_s, aborted)
        if self.placement is not None:
            self._forwarder.placer.finish(self.placement, now_s, outcome)
            if self._forwarder.waiting is not None:
                self._forwarder.waiting.room_made()
        model, stream = (None, False) if prompt is None else (prompt.model, prompt.stream)
        facts = RequestFacts(request.request_id, request.method, request.path, model, stream, None)
        self._forwarder.recorder.finished(self.placement, outcome, facts)

    # -- the prompt ---------------------------------------------------------------------------------------------------

    def _not_read(self, error: BaseException) -> None:
        self._prompting = None
        _log.error("internal error while reading the prompt", exc_info=error)
        self._fail(WarmrouteError("internal error; the picker's log has it"))

    def _prompt_read(self, prompt: Prompt, seconds: float) -> None:
        self._prompting = None
        self._prompt = prompt
        forwarder, waiting = self._forwarder, self._forwarder.waiting
        forwarder.recorder.prompt_read(seconds, prompt.reason)
        if waiting is None:
            self._try_place()
        elif waiting.has_line(prompt.model) or not self._try_place():
            try:
                ticket = self._ticket = waiting.enter(self, prompt, None)
            except WarmrouteError as error:
                self._fail(error)
                return
            self._waiting = waiting
            self.deadline_s = ticket.since_s + waiting.queue_s
            forwarder.deadlines.watch(self)

    # -- the place ----------------------------------------------------------------------------------------------------

    def _try_place(self) -> bool:
        """Find a replica, or fail; False when all that could take it have no room and it may wait."""
        forwarder, prompt = self._forwarder, self._prompt
        assert prompt is not None  # noqa: S101 - for the type alone: it was read
        try:
            placement = forwarder.place(prompt, self.request, self._excluded)
        except NoRoomError as error:
            if forwarder.waiting is not None:
                return False
            self._fail(error)
        except WarmrouteError as error:
            self._fail(error)
        except Exception as error:
            _log.exception("internal error while placing")
            self._fail(WarmrouteError("internal error; the picker's log has it"), error)
        else:
            self.placement = placement
            if self._ticket is not None:
                placement.decision.queued_s = time.monotonic() - self._ticket.since_s
            self._placed()
        return True

    def take_turn(self) -> bool:
        """See `Patient`."""
        if self._ticket is None:
            return True
        if not self._try_place():
            return False
        self._ticket = None
        self._forwarder.deadlines.unwatch(self)
        return True

    def turned_away(self, error: WarmrouteError) -> None:
        """See `Patient`."""
        self._ticket = None
        self._forwarder.deadlines.unwatch(self)
        self._fail(error)

    def expire(self, now_s: float) -> None:
        """See `Expiring`: it waited long enough."""
        self._leave_queue()
        self._fail(QueueTimeoutError("no replica had room in time", retry_after_s=1))

    def _leave_queue(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None and self._waiting is not None:
            self._waiting.leave(ticket)
            self._forwarder.deadlines.unwatch(self)

    def _fail(self, error: WarmrouteError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause
        self._failed(error)


def endpoint_of(address: tuple[str, int, bool]) -> str:
    """Return a replica's address as gateways write it: ADDRESS:PORT, an IPv6 address in brackets."""
    host, port, _ = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
