"""What a request's head says, and which heads are refused.

llhttp reads the bytes, strictly (no bare LF, no folded headers, no white space before a colon, no two lengths, no
length beside a transfer coding). The rules that need the whole head are here; with them nothing is left that two
parsers could read as two different requests.
"""

from __future__ import annotations

import httptools

from router.errors import MalformedRequestError, UpgradeRefusedError
from router.proxy.exchange import Headers
from router.telemetry.logs import clean_request_id

_NOTED = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"expect",
        b"upgrade",
        b"x-request-id",
        b"x-warmroute-explain",
    )
)
_NOT_NAMED = frozenset((b"close", b"keep-alive", b""))


class RequestHead:
    """Parses one head; read the attributes once `complete`.

    Attributes:
        target: The raw request target.
        headers: All pairs, raw and in order.
        begun: Whether anything but empty lines was read.
        complete: Whether the head's last line was read.
        method: Upper case.
        version: `1.0` or `1.1`.
        content_length: None without the header.
        chunked: Whether the body is in chunked coding.
        keep_alive: Whether the client wants the connection kept.
        expects_continue: Whether it waits for 100 before it sends the body.
        request_id: The client's own if it is safe to log and send on.
        explain: Whether it asks for the decision.
        dropped: Lower-case header names that Connection declares to be for this connection alone.
    """

    __slots__ = (
        "_hosts",
        "_lengths",
        "_named",
        "_parser",
        "_transfer",
        "_upgrade",
        "begun",
        "chunked",
        "complete",
        "content_length",
        "dropped",
        "expects_continue",
        "explain",
        "headers",
        "keep_alive",
        "method",
        "request_id",
        "target",
        "version",
    )

    def __init__(self) -> None:
        self.target = b""
        self.headers: Headers = []
        self.begun = False
        self.complete = False
        self.method = ""
        self.version = "1.1"
        self.content_length: int | None = None
        self.chunked = False
        self.keep_alive = False
        self.expects_continue = False
        self.request_id: str | None = None
        self.explain = False
        self.dropped: frozenset[bytes] = frozenset()
        self._hosts = 0
        self._transfer: list[bytes] = []
        self._named: list[bytes] = []
        self._upgrade = b""
        self._lengths = 0
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Take in bytes of the head, none that follow it.

        Raises:
            MalformedRequestError: They are not HTTP/1.x, or not unambiguously.
            UpgradeRefusedError: They ask for another protocol.
        """
        parser = self._parser
        if parser is None:
            raise MalformedRequestError("bytes after the end of the head")
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # Judged below, with the whole head at hand.
        except httptools.HttpParserError as error:
            self._parser = None
            # llhttp's words are fixed texts: nothing of the request is in them.
            raise MalformedRequestError(f"malformed HTTP request: {error}") from None
        if self.complete:
            self._judge(parser)
            self._parser = None  # It holds our methods: without this the two keep each other alive.

    def again(self, connection: bytes) -> bytes:
        """Return the head as it came, but with this `Connection` line for its own."""
        lines = [b"%s %s HTTP/%s" % (self.method.encode("ascii"), self.target, self.version.encode("ascii"))]
        lines += [name + b": " + value for name, value in self.headers if name.lower() != b"connection"]
        return b"\r\n".join((*lines, connection, b"", b""))

    # -- llhttp's callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of the request line."""
        self.begun = True

    def on_url(self, url: bytes) -> None:
        """A part of the request target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is complete."""
        value = value.rstrip(b" \t")
        self.headers.append((name, value))
        lower = name.lower()
        if lower not in _NOTED:
            return
        if lower == b"host":
            self._hosts += 1
        elif lower == b"content-length":
            self._lengths += 1
            self.content_length = int(value) if value.isdigit() else -1
        elif lower == b"transfer-encoding":
            self._transfer.append(value.lower())
        elif lower == b"connection":
            self._named += [token.strip() for token in value.lower().split(b",")]
        elif lower == b"expect":
            self.expects_continue = value.lower() == b"100-continue"
        elif lower == b"upgrade":
            self._upgrade = value.lower()
        elif lower == b"x-request-id":
            self.request_id = clean_request_id(value.decode("latin-1"))
        else:
            self.explain = value == b"1"

    def on_headers_complete(self) -> None:
        """The empty line was read."""
        self.complete = True

    # -- the rules ----------------------------------------------------------------------------------------------------

    def _judge(self, parser: httptools.HttpRequestParser) -> None:
        self.method = parser.get_method().decode("ascii")
        self.version = parser.get_http_version()
        if self.method == "CONNECT":
            raise UpgradeRefusedError("CONNECT is not served here")
        if self.version not in ("1.1", "1.0"):
            raise MalformedRequestError("only HTTP/1.1 and HTTP/1.0 are served")
        # RFC 9112, 3.2: "A server MUST respond with a 400 to any HTTP/1.1 request message that lacks a Host header
        # field and to any request message that contains more than one Host header field line."
        if self._hosts > 1 or (self._hosts == 0 and self.version == "1.1"):
            raise MalformedRequestError("exactly one Host header is required")
        if self._lengths > 1 or (self.content_length is not None and self.content_length < 0):
            raise MalformedRequestError("Content-Length is repeated or malformed")
        if self._transfer:
            # RFC 9112, 6.1: a transfer coding in HTTP/1.0 is faulty framing; any but chunked has no known end here.
            if self._transfer != [b"chunked"] or self.version == "1.0" or self._lengths:
                raise MalformedRequestError("the only transfer coding accepted is chunked, without Content-Length")
            self.chunked = True
        named = frozenset(self._named)
        # RFC 9110, 7.8: Upgrade may be ignored. For h2c it is, as Java's client and curl offer it with any request;
        # a client that asks for WebSocket can't use an ordinary answer.
        if self._upgrade and b"upgrade" in named and self.version == "1.1" and self._upgrade != b"h2c":
            raise UpgradeRefusedError("this server speaks HTTP/1.1 only and upgrades to no other protocol")
        self.keep_alive = b"close" not in named and (self.version == "1.1" or b"keep-alive" in named)
        self.expects_continue = self.expects_continue and self.version == "1.1"
        self.dropped = named - _NOT_NAMED
