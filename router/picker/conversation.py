"""One request as a gateway tells it over ext_proc: what came, and what is to be answered when. No I/O.

A gateway sends the head, then the body if there is one, and waits for an endpoint; after that it tells of the answer.
How bodies come is the gateway's configuration (`request_body_mode`), which its first message tells:

- FULL_DUPLEX_STREAMED, as the Inference Extension wants it: nothing is answered until the body is whole; then the
  endpoint, and the body back in pieces.
- BUFFERED, BUFFERED_PARTIAL: the head goes on at once, and the endpoint is told with the body.
- NONE, STREAMED: the head must be answered before a body is seen, so the request is placed by load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from router.errors import BodyTooLargeError
from router.picker import messages

_Mode = ProcessingMode.BodySendMode
_BUFFERED = (_Mode.BUFFERED, _Mode.BUFFERED_PARTIAL)
Answers = list[pb.ProcessingResponse]


class Stage(Enum):
    """How far a request is."""

    HEAD = auto()
    BODY = auto()
    """The head is there, the body is coming."""
    ASKED = auto()
    """All is there, and an endpoint is being chosen."""
    PICKED = auto()
    """The gateway was told."""


@dataclass(slots=True)
class Head:
    """What the request's head says that matters here.

    Attributes:
        headers: Lower-case names and values in order, without the pseudo-headers.
        subset: ADDRESS:PORT of the endpoints that may be chosen; None: any.
    """

    method: str
    target: bytes
    headers: list[tuple[str, bytes]]
    subset: frozenset[str] | None

    def first(self, name: str) -> bytes | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(slots=True)
class Conversation:
    """See the module.

    Attributes:
        body: What came of the body.
        limit_bytes: `limits.body_bytes`.
    """

    limit_bytes: int
    stage: Stage = Stage.HEAD
    head: Head | None = None
    body: bytearray = field(default_factory=bytearray)
    _mode: int = _Mode.FULL_DUPLEX_STREAMED
    _response_mode: int = _Mode.NONE
    _has_body: bool = False
    _ended_by_trailers: bool = False

    def feed(self, message: pb.ProcessingRequest) -> Answers:
        """Take a message of the request; afterwards `stage` is ASKED when an endpoint is wanted.

        Raises:
            BodyTooLargeError: The body is over the limit.
        """
        if message.HasField("protocol_config"):
            self._mode = message.protocol_config.request_body_mode
            self._response_mode = message.protocol_config.response_body_mode
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            return self._take_head(message)
        if kind == "request_body":
            return self._take_body(message.request_body)
        if kind == "request_trailers":
            return self._take_trailers()
        return []

    def _take_head(self, message: pb.ProcessingRequest) -> Answers:
        self.head = _head_of(message)
        if message.request_headers.end_of_stream or self._mode in (_Mode.NONE, _Mode.STREAMED):
            self.stage = Stage.ASKED
            return []
        self._has_body = True
        self.stage = Stage.BODY
        return [messages.headers_go_on()] if self._mode in _BUFFERED else []

    def _take_body(self, part: pb.HttpBody) -> Answers:
        if self.stage is not Stage.BODY:  # STREAMED: placed already
            return [messages.body_goes_on()]
        if len(self.body) + len(part.body) > self.limit_bytes:
            raise BodyTooLargeError(f"the body is over {self.limit_bytes} bytes (limits.body_bytes)")
        self.body += part.body
        # A body that was buffered in part is all that comes: what the router can't read of it is placed by load.
        if part.end_of_stream or self._mode in _BUFFERED:
            self.stage = Stage.ASKED
        return []

    def _take_trailers(self) -> Answers:
        if self.stage is Stage.BODY:
            self._ended_by_trailers = True
            self.stage = Stage.ASKED
            return []
        return [messages.request_trailers_go_on()]

    def picked(self, choice: messages.Choice) -> Answers:
        """Return what tells the gateway of the endpoint, and gives its body back. The body is gone then."""
        self.stage = Stage.PICKED
        if self._has_body and self._mode in _BUFFERED:
            told = [messages.endpoint_in_body(choice)]
        else:
            told = [messages.endpoint_in_headers(choice)]
            if self._has_body:
                told += messages.body_again(bytes(self.body))
        if self._ended_by_trailers:
            if self._has_body and self._mode == _Mode.FULL_DUPLEX_STREAMED:
                told[-1].request_body.response.body_mutation.streamed_response.end_of_stream = False
            told.append(messages.request_trailers_go_on())
        self.body = bytearray()
        return told

    def answered(self, message: pb.ProcessingRequest, added: messages.Pairs) -> Answers:
        """Return what lets a part of the answer go on; its head with these headers added."""
        kind = message.WhichOneof("request")
        if kind == "response_headers":
            return [messages.response_headers_go_on(added)]
        if kind == "response_body":
            part, is_duplex = message.response_body, self._response_mode == _Mode.FULL_DUPLEX_STREAMED
            return [messages.response_body_goes_on(part.body, part.end_of_stream, is_duplex=is_duplex)]
        if kind == "response_trailers":
            return [messages.response_trailers_go_on()]
        return self.feed(message)


def status_of(message: pb.ProcessingRequest) -> int | None:
    """Return the status that the answer's headers tell."""
    for header in message.response_headers.headers.headers:
        if header.key == ":status":
            value = header.raw_value.decode("latin-1") or header.value
            return int(value) if value.isdigit() else None
    return None


def _head_of(message: pb.ProcessingRequest) -> Head:
    pseudo: dict[str, bytes] = {}
    headers = []
    for header in message.request_headers.headers.headers:
        value = header.raw_value or header.value.encode("utf-8", "surrogateescape")
        if header.key.startswith(":"):
            pseudo[header.key] = value
        else:
            headers.append((header.key.lower(), value))
    method, target = pseudo.get(":method", b"POST").decode("latin-1"), pseudo.get(":path", b"/")
    return Head(method, target, headers, _subset_of(message))


def _subset_of(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """Return the endpoints that the gateway allows; a hint that is there and names none allows none."""
    hint = message.metadata_context.filter_metadata.get(messages.SUBSET_NAMESPACE)
    if hint is None or messages.SUBSET_KEY not in hint.fields:
        return None
    value = hint.fields[messages.SUBSET_KEY]
    if value.WhichOneof("kind") == "list_value":
        names = [item.string_value for item in value.list_value.values]
    else:
        names = value.string_value.split(",")
    return frozenset(name.strip() for name in names if name.strip())
