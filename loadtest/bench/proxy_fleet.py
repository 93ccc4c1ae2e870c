"""Engines for `make bench-proxy`: they answer at once with the same bytes, so that what is measured is the router.

A process of its own, on uvloop: `python -m loadtest.bench.proxy_fleet PORTS SECONDS`, of which the second
is the time between two chunks of a stream. Prints the ports as JSON once it serves.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

CHUNKS = 200
MODEL = "bench"
_USAGE = '"usage":{"prompt_tokens":50,"total_tokens":66,"completion_tokens":16,"prompt_tokens_details":null}'
_MESSAGE = json.dumps({"role": "assistant", "content": "answer " * 30})
_ANSWER = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,'
    f'"message":{_MESSAGE},"finish_reason":"length"}}],{_USAGE}}}'
).encode()
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL}]}).encode()
_SSE = b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
    return head % len(body) + body


_CHAT, _LIST, _OTHER = _whole(_ANSWER), _whole(_MODELS), _whole(b'{"model_path":"bench","is_generation":true}')


class Stream:
    """One stream: a chunk each `every_s`, with drift made up for."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._every_s = every_s
        self._transport = transport
        self._loop = loop
        self._left = CHUNKS
        self._next_s = loop.time() + every_s
        transport.write(_SSE)
        loop.call_at(self._next_s, self._tick)

    def _tick(self) -> None:
        if self._transport.is_closing():
            return
        self._left -= 1
        self._transport.write(_CHUNK if self._left else _CHUNK + _LAST)
        if self._left:
            self._next_s += self._every_s
            self._loop.call_at(self._next_s, self._tick)


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._loop = loop
        self._every_s = every_s
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; answers when it is whole."""
        data = self._data + data if self._data else data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            head = data[:end].lower()
            place = head.find(b"content-length:")
            length = int(head[place + 15 : head.find(b"\r", place)]) if place >= 0 else 0
            if len(data) < end + length:
                break
            self._answer(data[:end], data[end : end + length])
            data = data[end + length :]
        self._data = data

    def _answer(self, head: bytes, body: bytes) -> None:
        if b"/v1/chat/completions" not in head:
            self._transport.write(_LIST if b"/v1/models" in head else _OTHER)
        elif b'"stream":true' in body:
            Stream(self._transport, self._loop, self._every_s)
        else:
            self._transport.write(_CHAT)


async def serve(count: int, every_s: float) -> None:
    """Serve on as many ports until the process is ended."""
    loop = asyncio.get_running_loop()
    ports = []
    for _ in range(count):
        server = await loop.create_server(lambda: Engine(loop, every_s), "127.0.0.1", 0, backlog=4_096)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
