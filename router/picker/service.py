"""The gRPC side of the picker: one call for each request that a gateway carries."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorServicer

from router.config import RouterConfig
from router.errors import (
    BodyTooLargeError,
    NoRoomError,
    PathNotFoundError,
    QueueFullError,
    QueueTimeoutError,
    WarmrouteError,
)
from router.picker import messages
from router.picker.conversation import Conversation, Head, Stage, status_of
from router.picker.picking import Picking, endpoint_of
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


class PickerService(ExternalProcessorServicer):  # type: ignore[misc]  # the generated code has no types
    """Envoy's ExternalProcessor."""

    def __init__(self, forwarder: Forwarder, config: RouterConfig) -> None:
        self._forwarder = forwarder
        self._new_request_id = RequestIds(os.urandom(8).hex())
        self.configure(config)

    def configure(self, config: RouterConfig) -> None:
        """Serve by another configuration from now on."""
        self._limit_bytes = config.limits.body_bytes
        self._paths = AllowedPaths(config.paths)
        self._fallbacks = config.picker.fallbacks
        wishes = WishReader(config.placement)
        self._wishes = wishes if wishes.is_needed else None

    async def Process(  # noqa: N802 - the protocol's name
        self, requests: AsyncIterator[pb.ProcessingRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ProcessingResponse]:
        """Serve one request from its head to the end of its answer."""
        arrived_s = time.monotonic()
        conversation = Conversation(self._limit_bytes)
        picking: Picking | None = None
        try:
            async for message in requests:
                if picking is not None:
                    if message.HasField("response_headers"):
                        picking.answer_began(status_of(message))
                    for reply in conversation.answered(message, self._added(picking)):
                        yield reply
                    continue
                for reply in conversation.feed(message):
                    yield reply
                if conversation.stage is Stage.ASKED:
                    picking = self._picking(conversation, arrived_s)
                    await picking.place()
                    for reply in conversation.picked(picking.choice(self._fallbacks)):
                        yield reply
        except WarmrouteError as error:
            status = 429 if isinstance(error, _SATURATED) else error.http_status
            request = picking.request if picking is not None else self._request(conversation.head, b"", arrived_s, "")
            if picking is not None:
                picking.finish(status, error.code)
                picking = None
            else:
                self._refused(request, status, error.code)
            yield _answer(error, status, request.request_id)
        except asyncio.CancelledError:
            if picking is not None:
                picking.finish(aborted=True)
                picking = None
            raise
        finally:
            if picking is not None:
                picking.finish()

    def _picking(self, conversation: Conversation, arrived_s: float) -> Picking:
        """Begin to choose for a request that is whole.

        Raises:
            PathNotFoundError: It is for a path that clients may not use.
            PolicyRefusedError: See `WishReader.note`.
        """
        head = conversation.head
        assert head is not None  # noqa: S101 - for the type alone: its stage says that it came
        raw_path, _ = split_target(head.target)
        path = self._paths.match(raw_path)
        if path is None:
            raise PathNotFoundError(f"there is no {safe_value(raw_path[:64].decode('latin-1')).decode('ascii')} here")
        request = self._request(head, bytes(conversation.body), arrived_s, path)
        if self._wishes is not None:
            self._wishes.note(request)
        return Picking(self._forwarder, request, self._excluded(head.subset))

    def _excluded(self, subset: frozenset[str] | None) -> list[str]:
        if subset is None:
            return []
        replicas = self._forwarder.fleet.replicas.values()
        return [replica.replica_id for replica in replicas if endpoint_of(replica.address) not in subset]

    def _request(self, head: Head | None, body: bytes, arrived_s: float, path: str) -> Request:
        head = head or Head("POST", b"", [], None)
        asked = clean_request_id((head.first("x-request-id") or b"").decode("latin-1"))
        return Request(
            request_id=asked or self._new_request_id(),
            method=head.method,
            target=head.target,
            path=path,
            query=b"",
            headers=[(name.encode("latin-1"), value) for name, value in head.headers],
            version="1.1",
            client="",
            arrived_s=arrived_s,
            body=body,
            framed=bool(body),
            explain=head.first("x-warmroute-explain") == b"1",
        )

    def _added(self, picking: Picking) -> messages.Pairs:
        """What the answer tells of its placement, as the router's own answers do."""
        placement = picking.placement
        if placement is None:
            return ()
        added = [
            ("x-warmroute-replica", safe_name(placement.replica.replica_id)),
            ("x-warmroute-matched-tokens", b"%d" % placement.decision.matched_tokens),
        ]
        if picking.request.explain:
            added.append(("x-warmroute-explain", safe_value(placement.decision.compact())))
        return added

    def _refused(self, request: Request, status: int, code: str) -> None:
        """Record a request that was never placed."""
        recorder = self._forwarder.recorder
        recorder.accepted()
        total_s = time.monotonic() - request.arrived_s
        facts = RequestFacts(request.request_id, request.method, request.path, None, False, None)
        recorder.finished(None, Outcome(status, code, None, None, None, None, total_s), facts)


def _answer(error: WarmrouteError, status: int, request_id: str) -> pb.ProcessingResponse:
    headers = [("content-type", b"application/json"), ("x-request-id", request_id.encode("ascii"))]
    if error.retry_after_s is not None:
        headers.append(("retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, BodyTooLargeError):
        headers.append(("connection", b"close"))
    return messages.answer(status, headers, error.to_json(), error.code)
