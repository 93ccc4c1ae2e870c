"""One chat request over HTTP, streamed or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import aiohttp
import orjson

from loadtest.driver.reply import HEADERS, MESSAGE_AT_MOST, PATH, Reply


class Client(Protocol):
    """Sends one request; never raises for what went wrong, but tells it in the reply."""

    async def send(self, body: Mapping[str, Any], clock: Callable[[], float], key: str = "") -> Reply:
        """Send it with `key` as bearer token, if there is one, and wait for the whole answer."""


class HttpClient:
    """Sends over a pool of connections that are kept."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        """Send to the endpoint at `url`, which has no path."""
        self._session = session
        self._url = url.rstrip("/") + PATH
        self._headers = HEADERS

    async def send(self, body: Mapping[str, Any], clock: Callable[[], float], key: str = "") -> Reply:
        """Send it and wait for the whole answer."""
        reply = Reply()
        headers = self._headers | {"authorization": f"Bearer {key}"} if key else self._headers
        try:
            async with self._session.post(self._url, data=orjson.dumps(body), headers=headers) as response:
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
        reply.take_head(response.status, response.headers)
        if response.status != 200:
            reply.take_refusal(await response.read())
        elif not stream:
            reply.take_whole(await response.read())
        else:
            async for line in response.content:
                if reply.answer.feed(line):
                    reply.pieces_s.append(clock())
            reply.end_stream()


def connections(timeout_s: float) -> aiohttp.ClientSession:
    """Return a pool without a limit: waiting for a connection would be time that nobody sees.

    Connections that idled for 3 s are not used again, since servers begin to close theirs at 5.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    return aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=2**18, auto_decompress=False)
