"""Where one request goes: to the replica that is chosen, to another one after that failed, or into the queue."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from router.errors import ConnectError, NoReplicaError, NoRoomError, WarmrouteError
from router.placement import Placement
from router.proxy.deadlines import NEVER
from router.proxy.exchange import Account, Exchange
from router.proxy.replies import broken_off, not_connected
from router.request.prompt import Prompt
from router.scheduling.decision import Outcome
from router.scheduling.waiting_room import Ticket

if TYPE_CHECKING:
    from router.proxy.forward import Forwarder
    from router.proxy.waiting import Patient


class Placing(ABC):
    """The part of a request's way that ends with a replica. `Forwarding` is the rest of it.

    Attributes:
        deadline_s: Clock (monotonic) at which the request's patience ends, whatever it waits for.
    """

    __slots__ = (
        "_account",
        "_broken",
        "_exchange",
        "_forwarder",
        "_placement",
        "_prompt",
        "_queued_s",
        "_ticket",
        "_total_deadline_s",
        "_tried",
        "deadline_s",
    )

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._exchange: Exchange = None  # type: ignore[assignment]  # set as it begins
        self._account: Account | None = None
        self._total_deadline_s = NEVER
        self._prompt: Prompt | None = None
        self._placement: Placement | None = None
        self._ticket: Ticket[Patient] | None = None
        self._queued_s = 0.0
        self._tried: Sequence[str] = ()
        self._broken = False
        self.deadline_s = NEVER

    # -- the rest of its way ------------------------------------------------------------------------------------------

    @abstractmethod
    def _reach(self, placement: Placement) -> None:
        """Go on to the chosen replica."""

    @abstractmethod
    def _refuse(self, error: WarmrouteError) -> None:
        """No engine answers this: an error of the router's own does."""

    @abstractmethod
    def _fail_inside(self, doing: str, error: BaseException | None = None) -> None:
        """A fault of the router's own, with the exception that is being handled if none is given."""

    @abstractmethod
    def _drop_upstream(self) -> None:
        """Leave the replica."""

    @abstractmethod
    def _finish_placement(self, outcome: Outcome) -> None:
        """Give the place back."""

    @abstractmethod
    def _outcome(self, status: int | None, error: str | None, *, aborted: bool = False) -> Outcome:
        """Return what came of it up to now."""

    # -- placing ------------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Choose a replica and go there; wait where all are full, or others wait already."""
        waiting, prompt = self._forwarder.waiting, self._prompt
        if waiting is None or prompt is None:
            self._try_place()
        elif waiting.has_line(prompt.model) or not self._try_place():
            try:
                self._ticket = waiting.enter(self, prompt, self._account)
            except WarmrouteError as error:
                self._refuse(error)
            else:
                self.deadline_s = min(self._total_deadline_s, self._ticket.since_s + waiting.queue_s)

    def _try_place(self) -> bool:
        """Go on to a replica, or be refused; False when all that could take it have no room."""
        forwarder, prompt = self._forwarder, self._prompt
        assert prompt is not None  # noqa: S101 - for the type alone: it was read
        try:
            placement = forwarder.place(prompt, self._exchange.request, self._tried)
        except NoRoomError as error:
            if forwarder.waiting is not None:
                return False
            self._refuse(error)
        except NoReplicaError as error:
            self._refuse(self._none_took_it() if self._tried else error)
        except WarmrouteError as error:
            self._refuse(error)
        except Exception:
            self._fail_inside("placing")
        else:
            self._placement = placement
            if self._queued_s:
                placement.decision.queued_s = self._queued_s
            self._reach(placement)
        return True

    def take_turn(self) -> bool:
        """It waited, and there may be room now; False when there is not."""
        ticket = self._ticket
        if ticket is None:
            return True
        before_s, deadline_s = self._queued_s, self.deadline_s
        self._queued_s += time.monotonic() - ticket.since_s
        self.deadline_s = self._total_deadline_s
        if not self._try_place():
            self._queued_s, self.deadline_s = before_s, deadline_s
            return False
        self._ticket = None
        return True

    def turned_away(self, error: WarmrouteError) -> None:
        """Another has its place in the queue."""
        self._ticket = None
        self._refuse(error)

    # -- again --------------------------------------------------------------------------------------------------------

    def _place_elsewhere(self, code: str) -> None:
        """Leave this replica, of which `code` tells what it failed by, and try another, if any attempt is left."""
        placement, forwarder = self._placement, self._forwarder
        assert placement is not None  # noqa: S101 - for the type alone: it was placed there
        self._finish_placement(self._outcome(None, code))
        self._tried = [*self._tried, placement.replica.replica_id]
        if len(self._tried) >= forwarder.attempts or not forwarder.may_retry():
            self._refuse(self._none_took_it())
            return
        forwarder.recorder.retried(code)
        self._place()

    def _go_elsewhere(self, refused: Placement, status: int) -> bool:
        """Try another replica after one refused; False when there is none, or were enough tries."""
        forwarder, prompt = self._forwarder, self._prompt
        tried = [*self._tried, refused.replica.replica_id]
        if prompt is None or len(tried) >= forwarder.attempts or not forwarder.may_retry():
            return False
        try:
            placement = forwarder.place(prompt, self._exchange.request, tried)
        except WarmrouteError:
            return False
        self._drop_upstream()
        self._finish_placement(self._outcome(status, None))
        self._tried = tried
        self._placement = placement
        forwarder.recorder.retried("refused")
        self._reach(placement)
        return True

    def _none_took_it(self) -> WarmrouteError:
        return broken_off() if self._broken else not_connected(len(self._tried))

    def _count_failure(self, *, refused_connection: bool = False) -> None:
        if self._placement is not None:
            self._forwarder.count_failure(self._placement.replica, refused_connection=refused_connection)

    def _connect_failure(self) -> None:
        """The replica could not be connected to: nothing was sent."""
        self._count_failure(refused_connection=True)
        self._place_elsewhere(ConnectError.code)
