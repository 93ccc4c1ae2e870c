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

from router.errors import BodyTooLargeError
from router.picker import messages
from router.picker.told import BodyMode, Part, Told

_BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
Answers = list[bytes]


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
class Conversation:
    """See the module.

    Attributes:
        body: What came of the body.
        limit_bytes: `limits.body_bytes`.
    """

    limit_bytes: int
    stage: Stage = Stage.HEAD
    head: Told | None = None
    body: bytearray = field(default_factory=bytearray)
    _mode: int = BodyMode.FULL_DUPLEX_STREAMED
    _response_mode: int = BodyMode.NONE
    _has_body: bool = False
    _ended_by_trailers: bool = False

    def feed(self, told: Told) -> Answers:
        """Take a message of the request; afterwards `stage` is ASKED when an endpoint is wanted.

        Raises:
            BodyTooLargeError: The body is over the limit.
        """
        if told.modes is not None:
            self._mode, self._response_mode = told.modes
        if told.part is Part.REQUEST_HEADERS:
            return self._take_head(told)
        if told.part is Part.REQUEST_BODY:
            return self._take_body(told)
        if told.part is Part.REQUEST_TRAILERS:
            return self._take_trailers()
        return []

    def _take_head(self, told: Told) -> Answers:
        self.head = told
        if told.ends or self._mode in (BodyMode.NONE, BodyMode.STREAMED):
            self.stage = Stage.ASKED
            return []
        self._has_body = True
        self.stage = Stage.BODY
        return [messages.HEADERS_GO_ON] if self._mode in _BUFFERED else []

    def _take_body(self, told: Told) -> Answers:
        if self.stage is not Stage.BODY:  # STREAMED: placed already
            return [messages.BODY_GOES_ON]
        if len(self.body) + len(told.body) > self.limit_bytes:
            raise self.too_large()
        self.body += told.body
        # A body that was buffered in part is all that comes: what the router can't read of it is placed by load.
        if told.ends or self._mode in _BUFFERED:
            self.stage = Stage.ASKED
        return []

    def too_large(self) -> BodyTooLargeError:
        """Return what is wrong with a body over the limit."""
        return BodyTooLargeError(f"the body is over {self.limit_bytes} bytes (limits.body_bytes)")

    def _take_trailers(self) -> Answers:
        if self.stage is Stage.BODY:
            self._ended_by_trailers = True
            self.stage = Stage.ASKED
            return []
        return [messages.REQUEST_TRAILERS_GO_ON]

    def picked(self, choice: messages.Choice) -> Answers:
        """Return what tells the gateway of the endpoint, and gives its body back. The body is gone then."""
        self.stage = Stage.PICKED
        if self._has_body and self._mode in _BUFFERED:
            told = [messages.endpoint_in_body(choice)]
        else:
            told = [messages.endpoint_in_headers(choice)]
            if self._has_body:
                told += messages.body_again(self.body, ends=not self._ended_by_trailers)
        if self._ended_by_trailers:
            told.append(messages.REQUEST_TRAILERS_GO_ON)
        self.body = bytearray()
        return told

    def answered(self, told: Told, added: messages.Pairs) -> Answers:
        """Return what lets a part of the answer go on; its head with these headers added."""
        if told.part is Part.RESPONSE_HEADERS:
            return [messages.response_headers_go_on(added)]
        if told.part is Part.RESPONSE_BODY:
            is_duplex = self._response_mode == BodyMode.FULL_DUPLEX_STREAMED
            return [messages.response_body_goes_on(told.body, told.ends, is_duplex=is_duplex)]
        if told.part is Part.RESPONSE_TRAILERS:
            return [messages.RESPONSE_TRAILERS_GO_ON]
        return self.feed(told)


def status_of(told: Told) -> int | None:
    """Return the status that the answer's headers tell."""
    value = told.first(b":status")
    return int(value) if value is not None and value.isdigit() else None
