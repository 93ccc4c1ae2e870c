"""The seam between the forwarder and whatever carries a client's request: one request and its answer.

Nothing here knows sockets or a framework, so that the forwarder is tested without them and another carrier (HTTP/2, an
in-process caller) needs no change behind the seam.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from router.native.subclassing import mypyc_attr
from router.proxy.usage import UsageTap
from router.request.prompt import Prompt
from router.scheduling.decision import Outcome
from router.scheduling.wishes import NO_WISHES, Wishes
from router.telemetry.tracing import Trace

if TYPE_CHECKING:
    from router.proxy.known_heads import KnownAnswer

Headers = list[tuple[bytes, bytes]]
"""Header pairs as received: spelling, order and repeats kept, white space around the value gone."""


class Framing(Enum):
    """How the bytes of an answer's body are told apart from what follows."""

    NONE = "none"
    """There is no body: HEAD, 204, 304."""
    LENGTH = "length"
    """The headers hold Content-Length, and the bytes written are the body."""
    CHUNKED = "chunked"
    """The bytes written are in chunked coding already, its last chunk with them."""
    PLAIN = "plain"
    """The bytes written are the body; its end is known only when it comes. The carrier frames it."""


class Account(Protocol):
    """A tenant's request, as answers see it."""

    @property
    def name(self) -> str:
        """The tenant's name."""

    @property
    def weight(self) -> float:
        """The tenant's share of the queue."""

    @property
    def priority(self) -> int:
        """Of this request, once it was read; lower goes first."""

    @property
    def cost_tokens(self) -> int:
        """What it will take of an engine, once it was read, by estimate."""

    @property
    def tells_cached(self) -> bool:
        """Whether its answers may tell what is cached."""

    def headers(self) -> Headers:
        """What every answer of the tenant's carries: what is left of its limits."""

    def read(self, prompt: Prompt) -> None:
        """The prompt is known; raises WarmrouteError when the request may not go on."""

    def tap(self, prompt: Prompt | None) -> UsageTap:
        """Return what reads the answer's usage."""

    def ended(self, outcome: Outcome, prompt: Prompt | None, *, answered: bool) -> None:
        """The request ended; `answered`: an engine was at work on it."""


class Request:
    """A complete request.

    Attributes:
        request_id: The client's own when it is safe, else the router's.
        method: As sent, upper case.
        target: The raw request target.
        path: Its path, normalised: an entry of the allow-list.
        query: `?` and the raw query, or nothing.
        headers: All headers, raw and in order.
        version: `1.0` or `1.1`.
        client: The client's address, `HOST:PORT`.
        arrived_s: Clock (monotonic) when its first byte was read.
        body: The body without its transfer coding; emptied by `release_body`.
        framed: Whether the client sent a body at all (even an empty one).
        dropped: Lower-case names of headers that were meant for this connection alone (named in Connection).
        explain: Whether the client asked for the decision (`x-warmroute-explain: 1`).
        begin: Its first line as an engine gets it and the name of the next, `host: `, where they are known already.
        crossing: The lines of `headers` that go to an engine, where they are known already. Whoever changes `headers`
            sets it to None.
        account: Whose request it is; None without tenants.
        rank: The data-parallel rank that the client chose, where it may.
        wishes: What it asks of its placement.
        admitted_s: When its tenant was found, by the clock of `arrived_s`; None without tenants.
        trace: What is noted of it for its spans; None: it is not traced.
        cors: Header lines of the answer for pages in browsers, instead of an engine's; None: the engine's own pass.
    """

    __slots__ = (
        "account",
        "admitted_s",
        "arrived_s",
        "begin",
        "body",
        "client",
        "cors",
        "crossing",
        "dropped",
        "explain",
        "framed",
        "headers",
        "method",
        "path",
        "query",
        "rank",
        "request_id",
        "target",
        "trace",
        "version",
        "wishes",
    )

    def __init__(
        self,
        request_id: str,
        method: str,
        target: bytes,
        path: str,
        query: bytes,
        headers: Headers,
        version: str,
        client: str,
        arrived_s: float,
        body: bytes = b"",
        framed: bool = False,
        dropped: frozenset[bytes] = frozenset(),
        explain: bool = False,
        crossing: bytes | None = None,
    ) -> None:
        self.request_id = request_id
        self.method = method
        self.target = target
        self.path = path
        self.query = query
        self.headers = headers
        self.version = version
        self.client = client
        self.arrived_s = arrived_s
        self.body = body
        self.framed = framed
        self.dropped = dropped
        self.explain = explain
        self.crossing = crossing
        self.begin: bytes | None = None
        self.account: Account | None = None
        self.cors: bytes | None = None
        self.rank: int | None = None
        self.wishes: Wishes = NO_WISHES
        self.admitted_s: float | None = None
        self.trace: Trace | None = None


class ExchangeListener(Protocol):
    """Whoever answers an exchange, told what happens to the client meanwhile."""

    def client_left(self) -> None:
        """The client reset the connection or can't be written to. Nothing may be sent any more."""

    def writing_paused(self) -> None:
        """The client reads more slowly than it is written to: write no more than what is at hand."""

    def writing_resumed(self) -> None:
        """The client has caught up."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange(ABC):
    """One request, and the way to answer it: `start`, any number of `write`, then `end`; or `abort` at any time.

    `answer` stands for `start` and one `write`.
    """

    __slots__ = ("listener", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.listener: ExchangeListener | None = None

    @property
    @abstractmethod
    def takes_chunked(self) -> bool:
        """Whether the client understands chunked coding; if not, a CHUNKED answer is to be sent as PLAIN."""

    @abstractmethod
    def start(
        self,
        status: int,
        reason: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        framing: Framing,
        *,
        more: bool = False,
        lines: bytes = b"",
    ) -> None:
        """Send the answer's head.

        Args:
            lines: Header lines that go before `headers`, as they are sent, each with its CRLF.
            headers: No hop-by-hop field is among them, and Content-Length for LENGTH and NONE alone.
            more: `write` or `end` follow at once, so that the head may go out with them.
        """

    def answer(self, known: KnownAnswer, own: bytes, data: bytes) -> None:
        """Send a whole answer, all but its `end`.

        Args:
            known: Says what its head says; it matched last.
            own: Header lines that are added.
            data: Head and body, as they came.
        """
        head = known.answer()
        self.start(head.status, head.reason, (), Framing.LENGTH, more=True, lines=head.lines + own)
        self.write(data[known.end :])

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes of the body at once. Never waits: see `ExchangeListener.writing_paused`."""

    @abstractmethod
    def end(self) -> None:
        """The answer is complete. The exchange must not be used after."""

    @abstractmethod
    def abort(self) -> None:
        """Cut the answer so that the client can tell that it is not complete. The exchange must not be used after."""

    @abstractmethod
    def hold_body(self, size_bytes: int) -> bool:
        """Count the request's body as so many bytes, as it grows or shrinks; False when that is too much."""

    @abstractmethod
    def release_body(self) -> None:
        """The request's body is needed no more: its memory is free for others."""

    def reply(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, reason: bytes = b"") -> None:
        """Answer as a whole."""
        bodiless = self.request.method == "HEAD" or status in (204, 304)
        complete = [*headers] if status in (204, 304) else [*headers, (b"content-length", b"%d" % len(body))]
        self.start(status, reason, complete, Framing.NONE if bodiless else Framing.LENGTH, more=True)
        if body and not bodiless:
            self.write(body)
        self.end()
