"""One request on its way: read, place, send, stream, account. Callbacks all along: no task waits for it, but where
a replica must be asked for the prompt's tokens (`remote_reading`).

What is tried again is in `retries`.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from router.errors import (
    QueueTimeoutError,
    UpstreamBrokenError,
    UpstreamTimeoutError,
    WarmrouteError,
)
from router.placement import Placement
from router.proxy.answer_head import AnswerHead
from router.proxy.deadlines import NEVER
from router.proxy.engine_connection import JOINED_BYTES, EngineConnection, Failure
from router.proxy.exchange import Exchange, Framing
from router.proxy.hop_by_hop import authority_of, engine_head, engine_request, joined
from router.proxy.known_heads import KnownAnswer
from router.proxy.placing import Placing
from router.proxy.pool import Connecting
from router.proxy.prompts import Cancellable
from router.proxy.replies import facts_of, placement_lines, reply_error
from router.proxy.retries import FAILURE_STATUSES, STALE_S
from router.proxy.usage import UsageTap
from router.proxy.wishes import session_number
from router.request.prompt import Prompt
from router.scheduling.decision import Outcome
from router.scheduling.wishes import Wishes
from router.telemetry.tracing import Ended, Trace, Tracing

if TYPE_CHECKING:
    from router.proxy.forward import Forwarder

_log = logging.getLogger(__name__)


class Forwarding(Placing):
    """See the module. It is the exchange's listener, the engine connection's sink, and has the request's deadline."""

    __slots__ = (
        "_answered",
        "_chunked",
        "_closed",
        "_connecting",
        "_connection",
        "_decoding",
        "_ended_placement",
        "_expects",
        "_fleet",
        "_prompting",
        "_sent_s",
        "_stale_tried",
        "_started_s",
        "_status",
        "_tap",
        "_ttft_s",
    )

    def __init__(self, forwarder: Forwarder) -> None:
        """Make one that others are stamped from."""
        super().__init__(forwarder)
        self._fleet = forwarder.fleet
        self._started_s = 0.0
        self._prompting: Cancellable | None = None
        self._ended_placement: Placement | None = None
        self._connecting: Connecting | None = None
        self._connection: EngineConnection | None = None
        self._stale_tried = False
        self._sent_s = 0.0
        self._status: int | None = None
        self._answered = False
        self._expects = True
        self._chunked = False
        self._decoding = False
        self._closed = False
        self._tap: UsageTap | None = None
        self._ttft_s: float | None = None

    def begin(self, exchange: Exchange) -> None:
        """Take a request, and get its prompt."""
        forwarder, request = self._forwarder, exchange.request
        forwarder.recorder.accepted()
        self._exchange = exchange
        exchange.listener = self
        self._account = request.account
        self._started_s = request.arrived_s
        self.deadline_s = self._total_deadline_s = request.arrived_s + forwarder.timeouts.total_s
        forwarder.running.add(self)
        forwarder.turn.expecting += 1
        self._prompting = forwarder.prompts.begin(request.path, request.body, self._prompt_read, self._not_read)

    def _not_read(self, error: BaseException) -> None:
        self._prompting = None
        self._fail_inside("reading the prompt", error)

    def _prompt_read(self, prompt: Prompt, seconds: float) -> None:
        self._prompting = None
        self._prompt = prompt
        trace = self._exchange.request.trace
        if trace is not None:
            trace.read_s, trace.reading_s, trace.render_s = time.monotonic(), seconds, prompt.render_s
        self._forwarder.recorder.prompt_read(seconds, prompt.reason)
        if prompt.conversation is not None:
            request = self._exchange.request
            request.wishes = Wishes(request.wishes.policy, session_number(request, prompt.conversation))
        if self._account is not None:
            try:
                self._account.read(prompt)
            except WarmrouteError as error:
                self._refuse(error)
                return
        self._place()

    # -- out ----------------------------------------------------------------------------------------------------------

    def _reach(self, placement: Placement) -> None:
        connection = self._forwarder.pool.take(placement.replica.address)
        if connection is not None:
            self._send(connection)
        else:
            self._connect()

    def _connect(self) -> None:
        placement = self._placement
        assert placement is not None  # noqa: S101 - for the type alone: it was just placed
        self._connecting = self._forwarder.pool.connect(
            placement.replica.address, self._connected, self._connect_failed
        )

    def _connected(self, connection: EngineConnection) -> None:
        try:
            self._send(connection)
        except Exception:
            connection.abort()
            self._fail_inside("sending to a replica")

    def _connect_failed(self, error: OSError) -> None:
        self._connecting = None
        self._connect_failure()

    def _send(self, connection: EngineConnection) -> None:
        self._connecting = None
        placement, request = self._placement, self._exchange.request
        assert placement is not None  # noqa: S101 - for the type alone: it was placed before
        replica = placement.replica
        rank = placement.unit.rank if len(replica.units) > 1 else None
        self._connection = connection
        self._sent_s = time.monotonic()
        self.deadline_s = min(self._total_deadline_s, self._sent_s + self._forwarder.timeouts.first_byte_s)
        authority = authority_of(replica.url)
        whole = engine_request(request, authority) if rank is None and len(request.body) <= JOINED_BYTES else None
        bodiless = request.method == "HEAD"
        if whole is not None:
            connection.send_whole(self, whole, bodiless=bodiless)
        else:
            connection.send(self, engine_head(request, authority, rank), request.body, bodiless=bodiless)

    # -- AnswerSink ---------------------------------------------------------------------------------------------------

    def answer_started(self, head: AnswerHead, *, more: bool) -> None:
        """The engine answers: pass its head on, and look for token counts in what follows."""
        exchange, placement = self._exchange, self._placement
        assert placement is not None  # noqa: S101 - for the type alone: it was sent
        if head.status in FAILURE_STATUSES:
            self._count_failure()
        if head.status in self._forwarder.refusal_statuses and self._go_elsewhere(placement, head.status):
            return
        self._answered = True
        if self._expects:
            self._expects = False
            self._forwarder.turn.expecting -= 1
        self._status = head.status
        self.deadline_s = self._total_deadline_s
        if head.status not in FAILURE_STATUSES:
            self._fleet.succeeded(placement.replica.replica_id)
        framing = head.framing
        self._chunked = framing is Framing.CHUNKED
        if self._chunked and not exchange.takes_chunked:
            framing = Framing.PLAIN
            self._decoding = True
        if head.readable and 200 <= head.status < 300:
            self._tap = UsageTap() if self._account is None else self._account.tap(self._prompt)
        lines = (head.lines or joined(head.headers)) + placement_lines(exchange.request, placement)
        exchange.start(head.status, head.reason, (), framing, more=more, lines=lines)
        self._release_body()

    def answer_whole(self, known: KnownAnswer, data: bytes) -> None:
        """The engine's whole answer at once: what `answer_started` and `answer_bytes` do, for a good one."""
        head, placement = known.head, self._placement
        status = head.status
        if placement is None or not 200 <= status < 300 or status in self._forwarder.refusal_statuses:
            connection, end = self._connection, known.end
            self.answer_started(known.answer(), more=True)
            if self._connection is connection:
                self.answer_bytes(data[end:])
            return
        exchange = self._exchange
        self._answered = True
        self._status = status
        self._fleet.succeeded(placement.replica.replica_id)
        if self._ttft_s is None:
            self._first_byte()
        exchange.answer(known, placement_lines(exchange.request, placement), data)
        # Its end follows at once, and releases the request's body.
        if head.readable:
            tap = self._tap = UsageTap() if self._account is None else self._account.tap(self._prompt)
            tap.feed(data[known.end :])

    def _release_body(self) -> None:
        """The request is not sent again."""
        self._exchange.release_body()

    def answer_decoded(self, piece: bytes) -> None:
        """A piece of a chunked body."""
        if self._tap is not None:
            self._tap.feed(piece)
        if self._decoding:
            self._first_byte()
            self._exchange.write(piece)

    def answer_bytes(self, data: bytes) -> None:
        """Bytes of the body: on to the client at once."""
        if self._ttft_s is None:
            self._first_byte()
        if not self._decoding:
            self._exchange.write(data)
            if self._tap is not None and not self._chunked:
                self._tap.feed(data)

    def _first_byte(self) -> None:
        if self._ttft_s is not None:
            return
        now_s = time.monotonic()
        self._ttft_s = now_s - self._started_s
        prompt, placement = self._prompt, self._placement
        # Only a stream's first byte is its first token; a whole answer's says nothing of when its prompt was computed.
        if prompt is not None and prompt.stream and placement is not None and self._status == 200:
            self._forwarder.placer.first_token(placement, now_s)

    def answer_ended(self) -> None:
        """The engine's answer is complete."""
        self._connection = None
        try:
            self._close(self._outcome(self._status, None))
        finally:
            self._exchange.end()

    def answer_failed(self, failure: Failure) -> None:
        """The connection closed, or spoke nonsense."""
        connection, self._connection = self._connection, None
        if self._answered:
            self._count_failure()
            self._close(self._outcome(self._status, UpstreamBrokenError.code))
            self._exchange.abort()
            return
        stale = failure is Failure.NOTHING_RECEIVED and connection is not None and connection.served > 1
        if stale and not self._stale_tried and time.monotonic() - self._sent_s < STALE_S:
            self._stale_tried = True
            self._forwarder.recorder.retried("stale_connection")
            self._connect()
            return
        self._count_failure()
        self._broken = True
        if self._forwarder.repeats_broken:
            self._place_elsewhere(UpstreamBrokenError.code)
        else:
            self._refuse(self._none_took_it())

    # -- ExchangeListener and deadline --------------------------------------------------------------------------------

    def client_left(self) -> None:
        """The client is gone: stop the engine's work."""
        self._drop_upstream()
        self._close(self._outcome(self._status, None, aborted=True))

    def writing_paused(self) -> None:
        """The client is slow: let the engine's bytes wait in the kernel, and so the engine."""
        if self._connection is not None:
            self._connection.pause_reading()

    def writing_resumed(self) -> None:
        """Go on."""
        if self._connection is not None:
            self._connection.resume_reading()

    def expire(self, now_s: float) -> None:
        """The answer did not begin in time, or did not end."""
        self.deadline_s = NEVER
        total = now_s >= self._total_deadline_s
        if self._connection is not None and not (total and self._answered):
            self._count_failure()
        self._drop_upstream()
        if self._answered:
            self._close(self._outcome(self._status, UpstreamTimeoutError.code))
            self._exchange.abort()
        elif self._ticket is not None:
            self._refuse(QueueTimeoutError("no replica had room in time", retry_after_s=1))
        else:
            self._refuse(UpstreamTimeoutError("the replica did not answer in time"))

    def _drop_upstream(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _fail_inside(self, doing: str, error: BaseException | None = None) -> None:
        _log.error("internal error while %s", doing, exc_info=error or True)
        self._refuse(WarmrouteError("internal error; the router's log has it"))

    def _refuse(self, error: WarmrouteError) -> None:
        if self._closed:
            return
        self._finish_placement(self._outcome(None, error.code))
        self._close(self._outcome(error.http_status, error.code))
        reply_error(self._exchange, error)

    def _outcome(self, status: int | None, error: str | None, *, aborted: bool = False) -> Outcome:
        tap = self._tap
        total_s = time.monotonic() - self._started_s
        if tap is None:
            return Outcome(status, error, None, None, None, self._ttft_s, total_s, aborted)
        tokens = (tap.prompt_tokens, tap.cached_tokens, tap.completion_tokens)
        return Outcome(status, error, *tokens, self._ttft_s, total_s, aborted)

    def _finish_placement(self, outcome: Outcome) -> None:
        placement, self._placement = self._placement, None
        if placement is not None:
            self._ended_placement = placement
            self._forwarder.placer.finish(placement, time.monotonic(), outcome)
            if self._forwarder.waiting is not None:
                self._forwarder.waiting.room_made()

    def _close(self, outcome: Outcome) -> None:
        """Account for the request, once, however it ended."""
        if self._closed:
            return
        self._closed = True
        self.deadline_s = NEVER
        if self._prompting is not None:
            self._prompting.cancel()
            self._prompting = None
        if self._ticket is not None and self._forwarder.waiting is not None:
            self._forwarder.waiting.leave(self._ticket)
        self._exchange.listener = None  # or the two keep each other alive until the garbage collector comes
        forwarder, prompt = self._forwarder, self._prompt
        # What was placed last, though it ended already: an operator looks for the replica that broke.
        placement = self._placement or self._ended_placement
        forwarder.running.discard(self)
        if self._expects:
            forwarder.turn.expecting -= 1
        self._finish_placement(outcome)
        if self._account is not None:
            self._account.ended(outcome, prompt, answered=self._sent_s > 0)
        trace = self._exchange.request.trace
        if trace is not None and forwarder.tracing is not None:
            self._trace_ended(forwarder.tracing, trace, outcome)
        facts = facts_of(self._exchange, prompt.model if prompt else None, stream=prompt is not None and prompt.stream)
        forwarder.noting.ended(placement, outcome, facts)

    def _trace_ended(self, tracing: Tracing, trace: Trace, outcome: Outcome) -> None:
        request, prompt = self._exchange.request, self._prompt
        trace.sent_s = self._sent_s or None
        if self._ttft_s is not None:
            trace.first_token_s = self._started_s + self._ttft_s
        model, tenant = (
            None if prompt is None else prompt.model,
            None if request.account is None else request.account.name,
        )
        path = request.path
        tracing.end(trace, Ended(request.method, path, request.request_id, model, tenant, outcome, time.monotonic()))
