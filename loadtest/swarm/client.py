"""One chat request over gevent's sockets, streamed or not.

Not locust's own client: that one sends on connections which the server closed meanwhile, counts a stream as answered
when its head is there, and takes three times the CPU.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httptools
import orjson
from gevent import socket

from loadtest.driver.reply import HEADERS, MESSAGE_AT_MOST, PATH, Reply

READ_BYTES = 65_536
IDLE_AT_MOST_S = 3.0
"""Connections that idled for longer are not used again, since servers begin to close theirs at 5."""


class _Answer:
    """Takes an answer as httptools parses it."""

    def __init__(self, reply: Reply, stream: bool, clock: Callable[[], float]) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.complete = False
        self.keep = False
        self._reply = reply
        self._stream = stream
        self._clock = clock
        self._headers: dict[str, str] = {}
        self._raw = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._reply.take_head(self.parser.get_status_code(), self._headers)

    def on_body(self, body: bytes) -> None:
        self._raw += body
        if not self._stream or self._reply.status != 200:
            return
        *lines, self._raw = self._raw.split(b"\n")
        for line in lines:
            if self._reply.answer.feed(line):
                self._reply.pieces_s.append(self._clock())

    def on_message_complete(self) -> None:
        self.complete = True
        self.keep = self.parser.should_keep_alive()

    def end(self) -> None:
        """Judge the whole answer."""
        if self._reply.status != 200:
            self._reply.take_refusal(self._raw)
        elif not self._stream:
            self._reply.take_whole(self._raw)
        else:
            self._reply.end_stream()


class GeventClient:
    """Sends over connections that are kept; as many as there are requests at a time, since waiting for one would be
    time that nobody sees."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Send to the endpoint at `url`; nothing may come for `timeout_s` before a request has failed."""
        place = urlsplit(url)
        secure = place.scheme == "https"
        self._host = place.hostname or "localhost"
        self._port = place.port or (443 if secure else 80)
        self._tls = ssl.create_default_context() if secure else None
        self._timeout_s = timeout_s
        named = {**HEADERS, "host": place.netloc.rpartition("@")[2]}
        lines = "".join(f"\r\n{name}: {value}" for name, value in named.items())
        self._head = f"POST {place.path.rstrip('/')}{PATH} HTTP/1.1{lines}".encode()
        self._idle: list[tuple[float, Any]] = []

    def send(self, body: Mapping[str, Any], clock: Callable[[], float], key: str = "") -> Reply:
        """Send it and wait for the whole answer; what goes wrong is told in the reply."""
        reply = Reply()
        raw = orjson.dumps(body)
        head = self._head + (f"\r\nauthorization: Bearer {key}".encode() if key else b"")
        answer = _Answer(reply, bool(body.get("stream")), clock)
        connection = None
        try:
            connection = self._connect()
            connection.sendall(b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(raw), raw))
            while not answer.complete:
                data = connection.recv(READ_BYTES)
                if not data:
                    raise ConnectionError("closed before the end of the answer")
                answer.parser.feed_data(data)
            answer.end()
            if answer.keep:
                self._idle.append((time.monotonic(), connection))
                connection = None
        except TimeoutError:
            reply.cause = "timeout"
        except (OSError, httptools.HttpParserError) as error:
            reply.cause = "connection-broken" if connection is not None else "not-connected"
            reply.message = f"{type(error).__name__}: {error}"[:MESSAGE_AT_MOST]
        finally:
            if connection is not None:
                connection.close()
        return reply

    def _connect(self) -> Any:
        oldest_s = time.monotonic() - IDLE_AT_MOST_S
        while self._idle:
            since_s, connection = self._idle.pop()
            if since_s >= oldest_s:
                return connection
            connection.close()
        connection = socket.create_connection((self._host, self._port), self._timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._tls.wrap_socket(connection, server_hostname=self._host) if self._tls else connection
