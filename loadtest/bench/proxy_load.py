"""Load for `make bench-proxy`: as many connections, each with its next request as soon as the last is answered."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

WORDS = "the of and to in is that for with as on be this from which when their has have were".split()
PATIENCE_S = 600.0
"""A router that has not answered all by then never will."""
MARK = b"@@@@@@@@@@@@"


def chat(size_bytes: int, *, stream: bool, model: str) -> bytes:
    """Return a chat's body of about a size; `MARK` in it is put in its place by a number of twelve digits."""
    head = b'{"model":"%b","stream":%b,"max_tokens":200,"messages":[{"role":"user","content":"%b '
    begin = head % (model.encode(), b"true" if stream else b"false", MARK)
    text: list[str] = []
    while len(begin) + sum(map(len, text)) + len(text) + 4 < size_bytes:
        text.append(WORDS[(len(text) * 7 + len(text) // 11) % len(WORDS)])
    return begin + " ".join(text).encode() + b'"}]}'


@dataclass
class Heard:
    """What was measured while `measuring`.

    Attributes:
        latencies_s: From a request's first byte out to its answer's last byte in.
        gaps_s: Between chunks of one stream.
    """

    measuring: bool = False
    done: int = 0
    chunks: int = 0
    errors: int = 0
    latencies_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, requests: Requests, heard: Heard) -> None:
        self._requests = requests
        self._heard = heard
        self._head = b""
        self._left = -1
        self._tail = b""
        self._begun_s = self._last_s = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected: ask."""
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, or a failure."""
        if not self.ended.done():
            self._heard.errors += 1
            self.ended.set_result(None)

    def end(self) -> None:
        """No more is asked."""
        if not self.ended.done():
            self.ended.set_result(None)

    def _ask(self) -> None:
        request = self._requests.next()
        if request is None:
            self.end()
            self._transport.close()
            return
        self._head, self._left, self._tail = b"", -1, b""
        self._begun_s = self._last_s = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._left < 0 and not self._tail:
            self._head += data
            end = self._head.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            head, data = self._head[:end].lower(), self._head[end:]
            if not head.startswith(b"http/1.1 200"):
                self._heard.errors += 1
            place = head.find(b"content-length:")
            if place >= 0:
                self._left = int(head[place + 15 : head.find(b"\r", place)])
            else:
                self._tail = b"\n"
        if self._left >= 0:
            self._left -= len(data)
            if self._left <= 0:
                self._answered()
            return
        heard, now_s = self._heard, time.perf_counter()
        count = data.count(b"\n\n")
        if heard.measuring and count:
            heard.chunks += count
            heard.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n":
            self._answered()

    def _answered(self) -> None:
        heard = self._heard
        if heard.measuring:
            heard.done += 1
            heard.latencies_s.append(time.perf_counter() - self._begun_s)
        self._ask()


class Requests:
    """Makes the requests of one measurement.

    Args:
        distinct: Different prompts, again and again; 0: each is new.
        limit: Requests in all; None: until `stop`.
    """

    def __init__(self, body: bytes, distinct: int, limit: int | None = None, first: int = 0) -> None:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nuser-agent: bench\r\naccept: */*\r\n"
        head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._before, _, self._after = (head + body).partition(MARK)
        self._distinct = distinct
        self._left = limit
        self._number = first
        self.stopped = False

    def next(self) -> bytes | None:
        """Return the next request; None when there are no more."""
        if self.stopped or self._left == 0:
            return None
        if self._left is not None:
            self._left -= 1
        number = self._number % self._distinct if self._distinct else self._number
        self._number += 1
        return b"%b%012d%b" % (self._before, number, self._after)


async def run(port: int, requests: Requests, connections: int, warm_s: float, measured_s: float | None) -> Heard:
    """Send requests over so many connections.

    Args:
        measured_s: For so long after `warm_s`; None: until the requests end.
    """
    loop, heard = asyncio.get_running_loop(), Heard()
    made = []
    for _ in range(connections):
        made.append(await loop.create_connection(lambda: Client(requests, heard), "127.0.0.1", port))  # noqa: PERF401
    ends = asyncio.gather(*(client.ended for _, client in made))
    heard.measuring = warm_s == 0
    if measured_s is None:
        await asyncio.wait_for(ends, PATIENCE_S)
        return heard
    await asyncio.sleep(warm_s)
    heard.measuring = True
    await asyncio.sleep(measured_s)
    heard.measuring = False
    requests.stopped = True
    for transport, client in made:
        client.end()
        transport.abort()
    await ends
    return heard
