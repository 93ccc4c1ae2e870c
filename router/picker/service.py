"""One call of a gateway's for each request that it carries: served from the request's head to the answer's end."""

from __future__ import annotations

import logging
import os
import time

from router.config import RouterConfig
from router.errors import (
    BodyTooLargeError,
    NoRoomError,
    PathNotFoundError,
    QueueFullError,
    QueueTimeoutError,
    WarmrouteError,
)
from router.picker import messages, told
from router.picker.calls import Call, Status
from router.picker.conversation import Conversation, Stage, status_of
from router.picker.picking import Picking, endpoint_of
from router.picker.protobuf import MalformedError
from router.picker.told import Part, Told
from router.proxy.exchange import Request
from router.proxy.forward import Forwarder, RequestIds
from router.proxy.hop_by_hop import safe_name, safe_value
from router.proxy.paths import AllowedPaths, split_target
from router.proxy.wishes import WishReader
from router.scheduling.decision import Outcome
from router.telemetry.logs import clean_request_id
from router.telemetry.recorder import RequestFacts

_log = logging.getLogger(__name__)
_SATURATED = (NoRoomError, QueueFullError, QueueTimeoutError)
"""The protocol's 429: there are endpoints, and none has room. Its 503 is for none at all."""


class PickerService:
    """Envoy's ExternalProcessor."""

    def __init__(self, forwarder: Forwarder, config: RouterConfig) -> None:
        self.forwarder = forwarder
        self._new_request_id = RequestIds(os.urandom(8).hex())
        self.configure(config)

    def configure(self, config: RouterConfig) -> None:
        """Serve by another configuration from now on."""
        self.limit_bytes = config.limits.body_bytes
        self._paths = AllowedPaths(config.paths)
        self.fallbacks = config.picker.fallbacks
        wishes = WishReader(config.placement)
        self._wishes = wishes if wishes.is_needed else None

    def process(self, call: Call) -> Processing:
        """Serve a call."""
        return Processing(self, call)

    def read(self, conversation: Conversation, arrived_s: float) -> tuple[Request, list[str]]:
        """Return a request that is whole, and the replicas that it may not go to.

        Raises:
            PathNotFoundError: It is for a path that clients may not use.
            PolicyRefusedError: See `WishReader.note`.
        """
        head = conversation.head
        assert head is not None  # noqa: S101 - for the type alone: its stage says that it came
        raw_path, _ = split_target(head.first(b":path") or b"/")
        path = self._paths.match(raw_path)
        if path is None:
            raise PathNotFoundError(f"there is no {safe_value(raw_path[:64].decode('latin-1')).decode('ascii')} here")
        request = self.request(head, bytes(conversation.body), arrived_s, path)
        if self._wishes is not None:
            self._wishes.note(request)
        return request, self._excluded(head.subset)

    def _excluded(self, subset: frozenset[str] | None) -> list[str]:
        if subset is None:
            return []
        replicas = self.forwarder.fleet.replicas.values()
        return [replica.replica_id for replica in replicas if endpoint_of(replica.address) not in subset]

    def request(self, head: Told | None, body: bytes, arrived_s: float, path: str) -> Request:
        """Return a request as the data plane knows it."""
        head = head or Told(Part.REQUEST_HEADERS)
        asked = clean_request_id((head.first(b"x-request-id") or b"").decode("latin-1"))
        return Request(
            request_id=asked or self._new_request_id(),
            method=(head.first(b":method") or b"POST").decode("latin-1"),
            target=head.first(b":path") or b"/",
            path=path,
            query=b"",
            headers=[pair for pair in head.headers if not pair[0].startswith(b":")],
            version="1.1",
            client="",
            arrived_s=arrived_s,
            body=body,
            framed=bool(body),
            explain=head.first(b"x-warmroute-explain") == b"1",
        )

    def refused(self, request: Request, status: int, code: str) -> None:
        """Record a request that was never placed."""
        recorder = self.forwarder.recorder
        recorder.accepted()
        total_s = time.monotonic() - request.arrived_s
        facts = RequestFacts(request.request_id, request.method, request.path, None, False, None)
        recorder.finished(None, Outcome(status, code, None, None, None, None, total_s), facts)


class Processing:
    """One call, which is one request: a `Handler`."""

    __slots__ = ("_arrived_s", "_call", "_conversation", "_held", "_picking", "_service")

    def __init__(self, service: PickerService, call: Call) -> None:
        self._service = service
        self._call = call
        self._arrived_s = time.monotonic()
        self._conversation = Conversation(service.limit_bytes)
        self._picking: Picking | None = None
        self._held: list[Told] | None = None
        """What comes while an endpoint is being chosen; None: nothing is held."""

    def message(self, message: bytes) -> None:
        """See `Handler`."""
        try:
            part = told.read(message)
        except MalformedError as error:
            self.cancelled()
            self._call.finish(Status.INTERNAL, str(error))
            return
        if self._held is not None:
            self._held.append(part)
        else:
            self._take(part)

    def _take(self, part: Told) -> None:
        conversation, picking = self._conversation, self._picking
        try:
            if picking is not None:
                if part.part is Part.RESPONSE_HEADERS:
                    picking.answer_began(status_of(part))
                self._send(conversation.answered(part, _added(picking)))
                return
            self._send(conversation.feed(part))
            if conversation.stage is Stage.ASKED:
                service = self._service
                request, excluded = service.read(conversation, self._arrived_s)
                self._held = []
                self._picking = Picking(service.forwarder, request, excluded, self._placed, self._refuse)
                self._picking.begin()
        except WarmrouteError as error:
            self._refuse(error)
        except Exception:  # the connection has other requests, which go on
            _log.exception("internal error while serving a gateway's request")
            self._refuse(WarmrouteError("internal error; the picker's log has it"))

    def _placed(self) -> None:
        picking, held = self._picking, self._held
        assert picking is not None  # noqa: S101 - for the type alone: it calls
        self._held = None
        self._send(self._conversation.picked(picking.choice(self._service.fallbacks)))
        for part in held or ():
            self._take(part)

    def _send(self, answers: list[bytes]) -> None:
        for answer in answers:
            self._call.send(answer)

    def _refuse(self, error: WarmrouteError) -> None:
        status = 429 if isinstance(error, _SATURATED) else error.http_status
        picking, self._picking = self._picking, None
        if picking is not None:
            request = picking.request
            picking.finish(status, error.code)
        else:
            request = self._service.request(self._conversation.head, b"", self._arrived_s, "")
            self._service.refused(request, status, error.code)
        self._call.send(_answer(error, status, request.request_id))
        self._call.finish()

    def too_long(self) -> None:
        """See `Handler`: only a body can be so long."""
        if self._picking is None:
            self._refuse(self._conversation.too_large())

    def ended(self) -> None:
        """See `Handler`: the gateway needs nothing more."""
        self.cancelled()
        self._call.finish()

    def cancelled(self) -> None:
        """See `Handler`: the gateway left, which is how Envoy ends each request whose answer has no trailers."""
        picking, self._picking = self._picking, None
        if picking is not None:
            picking.finish(aborted=not picking.has_answer)


def _added(picking: Picking) -> messages.Pairs:
    """Return what the answer tells of its placement, as the router's own answers do."""
    placement = picking.placement
    if placement is None:
        return ()
    added = [
        (b"x-warmroute-replica", safe_name(placement.replica.replica_id)),
        (b"x-warmroute-matched-tokens", b"%d" % placement.decision.matched_tokens),
    ]
    if picking.request.explain:
        added.append((b"x-warmroute-explain", safe_value(placement.decision.compact())))
    return added


def _answer(error: WarmrouteError, status: int, request_id: str) -> bytes:
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode("ascii"))]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, BodyTooLargeError):
        headers.append((b"connection", b"close"))
    return messages.answer(status, headers, error.to_json(), error.code)
