"""An OpenAI endpoint of known delay, to measure load generators by: `python -m loadtest.bench.stub`.

An answer of n tokens (`max_tokens`) begins `delay_s(n)` after its request was read, and comes in up to 16 pieces, 2 ms
apart. The first piece's text is when it was written, by CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import cast

import httptools
import orjson
import uvloop

PIECES = 16
GAP_S = 0.002
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-warmroute-replica: stub\r\nx-warmroute-matched-tokens: 16\r\n\r\n"
)


def delay_s(tokens: int) -> float:
    """Return the delay of an answer's first token: from 40 ms on, 8 ms longer for each token above 16."""
    return 0.040 + 0.008 * max(0, tokens - 16)


class Stub(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            self._write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        # No clock of the loop: uvloop's stands still in each iteration.
        begun_s = time.perf_counter()
        request, self._body = orjson.loads(self._body), b""
        tokens = int(request["max_tokens"])
        self._at(begun_s + delay_s(tokens), self._begin, begun_s, tokens)

    def _at(self, when_s: float, act: object, *args: object) -> None:
        self._loop.call_later(max(0.0, when_s - time.perf_counter()), act, *args)  # type: ignore[arg-type]

    def _begin(self, begun_s: float, tokens: int) -> None:
        self._write(HEAD + _chunk(_piece(f"{time.perf_counter():.6f}")))
        self._next(begun_s + delay_s(tokens), 1, min(PIECES, tokens), tokens)

    def _next(self, first_s: float, number: int, pieces: int, tokens: int) -> None:
        if number < pieces:
            self._at(first_s + number * GAP_S, self._go_on, first_s, number, pieces, tokens)
            return
        usage = {"prompt_tokens": 64, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 16}}
        self._write(_chunk({"choices": [], "usage": usage}) + _chunk(None) + b"0\r\n\r\n")

    def _go_on(self, first_s: float, number: int, pieces: int, tokens: int) -> None:
        self._write(_chunk(_piece(" a")))
        self._next(first_s, number + 1, pieces, tokens)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _piece(text: str) -> dict[str, object]:
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": text}}],
    }


def _chunk(event: dict[str, object] | None) -> bytes:
    line = b"data: " + (b"[DONE]" if event is None else orjson.dumps(event)) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(line), line)


async def main() -> None:
    """Serve until killed; the first line of output tells where."""
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0, backlog=4_096)
    print(json.dumps({"http": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
