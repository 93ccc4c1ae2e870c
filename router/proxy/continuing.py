"""A request whose stream goes on at another replica when it breaks off (`retry.continuation`).

Bytes that were sent stand: nothing is repeated or altered. Events pass whole, so that a stream never breaks off within
one; what follows the break bears the identity of what came before. See `router.request.continuation` for what can be
gone on with; all else is cut as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.errors import UpstreamBrokenError, WarmrouteError
from router.proxy.answer_head import AnswerHead
from router.proxy.engine_connection import EngineConnection, Failure
from router.proxy.exchange import Framing
from router.proxy.forwarding import Forwarding
from router.proxy.known_heads import KnownAnswer
from router.request.continuation import Continuation
from router.request.prompt import Prompt

if TYPE_CHECKING:
    from router.proxy.forward import Forwarder

REASON = "continued"


class ContinuingForwarding(Forwarding):
    """See the module."""

    __slots__ = ("_continuation", "_is_chunked", "_is_paused", "_resuming", "_runs")

    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__(forwarder)
        self._continuation: Continuation | None = None
        self._runs = False
        self._resuming = False
        self._is_chunked = False
        self._is_paused = False

    def _prompt_read(self, prompt: Prompt, seconds: float) -> None:
        request = self._exchange.request
        if prompt.stream and request.method == "POST":
            self._continuation = Continuation.of(request.path, request.body)
        super()._prompt_read(prompt, seconds)

    def _send(self, connection: EngineConnection) -> None:
        super()._send(connection)
        if self._is_paused:
            connection.pause_reading()

    # -- AnswerSink ---------------------------------------------------------------------------------------------------

    def answer_started(self, head: AnswerHead, *, more: bool) -> None:
        """Look whether this can be gone on with; go on with it when it broke off."""
        is_stream = head.status == 200 and head.readable and head.framing in (Framing.CHUNKED, Framing.PLAIN)
        if self._resuming:
            self._resuming = False
            if not is_stream:
                self._give_up()
                return
            self._is_chunked = head.framing is Framing.CHUNKED
            self.deadline_s = self._total_deadline_s
            if self._placement is not None:
                self._fleet.succeeded(self._placement.replica.replica_id)
            return
        continuation = self._continuation
        if continuation is None or not is_stream or not self._exchange.takes_chunked:
            self._continuation = None
            super().answer_started(head, more=more)
            return
        self._runs = True
        self._is_chunked = head.framing is Framing.CHUNKED
        # What passes is framed anew: chunks of the engine's may hold parts of events.
        super().answer_started(head.framed(Framing.PLAIN), more=False)

    def answer_whole(self, known: KnownAnswer, data: bytes) -> None:
        """No stream, so none to go on with."""
        if self._resuming:
            self.answer_started(known.answer(), more=True)
            return
        self._continuation = None
        super().answer_whole(known, data)

    def _release_body(self) -> None:
        """It is needed, and counted, as long as the stream may have to be gone on with."""
        if not self._runs:
            super()._release_body()

    def answer_decoded(self, piece: bytes) -> None:
        """A piece of a chunked body."""
        if self._runs:
            self._take(piece)
        else:
            super().answer_decoded(piece)

    def answer_bytes(self, data: bytes) -> None:
        """Bytes of the body."""
        if not self._runs:
            super().answer_bytes(data)
        elif not self._is_chunked:
            self._take(data)

    def _take(self, data: bytes) -> None:
        continuation = self._continuation
        assert continuation is not None  # noqa: S101 - for the type alone: it runs
        passed = continuation.feed(data)
        self._first_byte()
        if passed:
            if self._tap is not None:
                self._tap.feed(passed)
            self._exchange.write(passed)

    def answer_ended(self) -> None:
        """The answer is complete."""
        if self._runs and self._continuation is not None:
            self._exchange.write(self._continuation.rest())
        super().answer_ended()

    def answer_failed(self, failure: Failure) -> None:
        """Go on elsewhere if that is possible."""
        if not self._runs or not self._answered:
            super().answer_failed(failure)
            return
        self._connection = None
        self._count_failure()
        self._go_on(UpstreamBrokenError.code)

    def _go_on(self, code: str) -> None:
        placement, continuation, forwarder = self._placement, self._continuation, self._forwarder
        self._finish_placement(self._outcome(self._status, code))
        body = continuation.follow_up() if continuation is not None else None
        if placement is None or body is None:
            self._give_up()
            return
        self._tried = [*self._tried, placement.replica.replica_id]
        if len(self._tried) >= forwarder.attempts or not forwarder.may_retry():
            self._give_up()
            return
        self._exchange.request.body = body
        self._resuming = True
        forwarder.recorder.retried(REASON)
        self._place()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def writing_paused(self) -> None:
        """The client is slow."""
        self._is_paused = True
        super().writing_paused()

    def writing_resumed(self) -> None:
        """Go on."""
        self._is_paused = False
        super().writing_resumed()

    def _refuse(self, error: WarmrouteError) -> None:
        if self._answered:
            self._give_up()
        else:
            super()._refuse(error)

    def _give_up(self) -> None:
        """Cut the stream, as where nothing is gone on with."""
        self._drop_upstream()
        self._close(self._outcome(self._status, UpstreamBrokenError.code))
        self._exchange.abort()
