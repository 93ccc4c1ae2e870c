"""Clients that read much slower than the engine writes, and clients that leave."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import aiohttp
import orjson

from loadtest.workloads.answers import StreamedAnswer, chat_body
from router.tools.chaos.fleet import MODEL

SLOW, LEAVING = 8, 24
SLOW_ANSWER_TOKENS = 600
"""Some 150 KB as a stream: more than the kernel takes for a client whose own buffer is small."""
RECEIVE_BUFFER_BYTES = 4_096
READ_BYTES, READ_EACH_S = 4_096, 0.5
LEAVES_S = (0.0, 0.5)
TIMEOUT_S = 180.0
PATH = "/v1/chat/completions"
HEADERS = {"content-type": "application/json"}


async def read_slowly(urls: list[str]) -> list[str]:
    """Read `SLOW` long streams; return what went wrong, in words."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_small_socket)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=READ_BYTES, timeout=timeout) as client:
        problems = await asyncio.gather(*(_read(client, urls[n % len(urls)], n) for n in range(SLOW)))
    return [f"slow client: {problem}" for problem in problems if problem]


async def leave(client: aiohttp.ClientSession, urls: list[str], rng: random.Random) -> list[str]:
    """Begin `LEAVING` requests, streams and others, and leave them in the middle; return what was refused, in words."""
    refused: list[str] = []

    async def begin(number: int, after_s: float) -> None:
        try:
            async with asyncio.timeout(after_s):
                body = _body(number, stream=number % 2 == 0)
                async with client.post(
                    urls[number % len(urls)] + PATH, data=orjson.dumps(body), headers=HEADERS
                ) as response:
                    if response.status != 200:
                        refused.append(f"leaving client: HTTP {response.status}: {(await response.text())[:300]}")
                    await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # it has left, or there was nobody to leave

    await asyncio.gather(*(begin(number, rng.uniform(*LEAVES_S)) for number in range(LEAVING)))
    return refused


async def _read(client: aiohttp.ClientSession, url: str, number: int) -> str:
    answer = StreamedAnswer()
    try:
        async with client.post(url + PATH, data=orjson.dumps(_body(number, stream=True)), headers=HEADERS) as response:
            if response.status != 200:
                return f"HTTP {response.status}: {(await response.text())[:300]}"
            rest = b""
            while data := await response.content.read(READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    answer.feed(line)
                await asyncio.sleep(READ_EACH_S)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    return answer.error or ("" if answer.done else "the stream ended early")


def _body(number: int, *, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Client {number} asks for a long story about the letter {number}."}]
    return chat_body(MODEL, messages, SLOW_ANSWER_TOKENS, stream)


def _small_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)  # before it connects: the window follows
    return made
