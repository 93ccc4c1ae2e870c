"""One chat request over HTTP, streamed or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson

from loadtest.workloads.answers import StreamedAnswer

PATH = "/v1/chat/completions"
MATCHED_HEADER = "x-warmroute-matched-tokens"
REPLICA_HEADER = "x-warmroute-replica"
MESSAGE_AT_MOST = 200
STREAM_ENDED_EARLY = "stream-ended-early"
ERROR_IN_STREAM = "error-in-stream"
NOT_JSON = "answer-is-not-json"


@dataclass(slots=True)
class Reply:
    """What came back.

    Attributes:
        pieces_s: When pieces with generated tokens came, by the clock that was given.
    """

    status: int | None = None
    replica: str = ""
    matched_tokens: int | None = None
    pieces_s: list[float] = field(default_factory=list)
    answer: StreamedAnswer = field(default_factory=StreamedAnswer)
    cause: str | None = None
    message: str = ""


class Client(Protocol):
    """Sends one request; never raises for what went wrong, but tells it in the reply."""

    async def send(self, body: Mapping[str, Any], clock: Callable[[], float]) -> Reply:
        """Send it and wait for the whole answer."""


class HttpClient:
    """Sends over a pool of connections that are kept."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Describe where to.

        Args:
            url: Of the endpoint, without a path.
            headers: More headers of each request.
        """
        self._session = session
        self._url = url.rstrip("/") + PATH
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **(headers or {})}

    async def send(self, body: Mapping[str, Any], clock: Callable[[], float]) -> Reply:
        """Send it and wait for the whole answer."""
        reply = Reply()
        try:
            async with self._session.post(self._url, data=orjson.dumps(body), headers=self._headers) as response:
                await self._read(response, reply, clock, bool(body.get("stream")))
        except TimeoutError:
            reply.cause = "timeout"
        except aiohttp.ClientConnectorError as error:
            reply.cause, reply.message = "not-connected", str(error)[:MESSAGE_AT_MOST]
        except (aiohttp.ClientError, OSError) as error:
            reply.cause, reply.message = "connection-broken", f"{type(error).__name__}: {error}"[:MESSAGE_AT_MOST]
        return reply

    async def _read(
        self, response: aiohttp.ClientResponse, reply: Reply, clock: Callable[[], float], stream: bool
    ) -> None:
        reply.status = response.status
        reply.replica = response.headers.get(REPLICA_HEADER, "")
        matched = response.headers.get(MATCHED_HEADER, "")
        reply.matched_tokens = int(matched) if matched.isdigit() else None
        if response.status != 200:
            raw = await response.read()
            reply.cause, reply.message = _refusal(response.status, raw)
            return
        answer = reply.answer
        if not stream:
            if not answer.take_whole(await response.read()):
                reply.cause = NOT_JSON
            return
        async for line in response.content:
            if answer.feed(line):
                reply.pieces_s.append(clock())
        if answer.error is not None:
            reply.cause, reply.message = ERROR_IN_STREAM, answer.error[:MESSAGE_AT_MOST]
        elif not answer.done:
            reply.cause = STREAM_ENDED_EARLY


def _refusal(status: int, raw: bytes) -> tuple[str, str]:
    """Return a cause and a message; the cause has the error's own code where it is in OpenAI's shape."""
    try:
        error = orjson.loads(raw)["error"]
        code, message = error.get("code"), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = None, raw.decode(errors="replace")
    # Engines repeat the status as their code.
    named = f" {code[:40]}" if isinstance(code, str) and code and code != str(status) else ""
    return f"http-{status}{named}", message[:MESSAGE_AT_MOST]


def connections(timeout_s: float) -> aiohttp.ClientSession:
    """Return a pool without a limit: waiting for a connection would be time that nobody sees.

    Connections that idled for 3 s are not used again, since servers begin to close theirs at 5.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    return aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=2**18, auto_decompress=False)
