"""What the dashboard and `warmroute top` watch: one view a second, however many look, and an hour of history."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from aiohttp import web

from router.admin import page
from router.admin.endpoints import MAX_STREAMS
from router.admin.history import EVERY_S, History
from router.admin.prefixes import DEFAULT_PREFIXES, MAX_PREFIXES
from router.admin.replies import HEADERS, json_answer
from router.background import run_again
from router.errors import MalformedRequestError, RequestError

VIEW_EVERY_S = 1.0
PREFIXES_EVERY_S = 5.0
WRITE_S = 10.0
"""A reader that takes longer for what one second brings is left."""
RETRY_MS = 1_000


class StreamsBusyError(RequestError):
    """As many follow the live view as may (32): close a dashboard, or ask `/admin/overview` now and then."""

    code = "streams_busy"
    http_status = 503


class Source(Protocol):
    """Where the figures come from: one process, or all workers."""

    async def totals(self) -> dict[str, Any]:
        """As `router.telemetry.totals.totals_of` gives them."""

    async def view(self) -> dict[str, Any]:
        """All of the overview but its time."""

    async def prefixes(self, limit: int) -> dict[str, Any]:
        """As `router.admin.prefixes.prefix_views` gives them."""

    def token(self) -> str | None:
        """The admin token in force."""


class _Kept:
    """What is made anew when it is older than so many seconds, once for all who ask meanwhile."""

    def __init__(self, make: Callable[[], Awaitable[dict[str, Any]]], max_age_s: float) -> None:
        self._make = make
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self._made_s = float("-inf")
        self._value: dict[str, Any] = {}
        self._text = b""

    async def get(self) -> tuple[dict[str, Any], bytes]:
        """Return it, and as JSON."""
        async with self._lock:
            if time.monotonic() - self._made_s >= self._max_age_s:
                self._value = await self._make()
                self._text = json.dumps(self._value, separators=(",", ":")).encode()
                self._made_s = time.monotonic()
            return self._value, self._text


class Live:
    """Handlers of the live view's rows of `ENDPOINTS`, by name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._history = History()
        self._newest: dict[str, Any] | None = None
        self._view = _Kept(self._make_view, VIEW_EVERY_S / 2)
        self._prefixes = _Kept(lambda: source.prefixes(DEFAULT_PREFIXES), PREFIXES_EVERY_S - VIEW_EVERY_S / 2)
        self._streams: set[asyncio.Task[Any]] = set()
        self._listings = asyncio.Semaphore(1)
        self.handlers: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "page": page.page,
            "asset": page.asset,
            "overview": self.overview,
            "history": self.history,
            "prefixes": self.prefixes,
            "events": self.events,
        }

    def join(self, app: web.Application) -> None:
        """Keep history while the application serves, and end streams when it is to stop."""
        task: list[asyncio.Task[None]] = []

        async def begin(_: web.Application) -> None:
            task.append(asyncio.create_task(run_again("history", self._keep_history)))

        async def end(_: web.Application) -> None:
            for each in [*task, *self._streams]:
                each.cancel()
            await asyncio.gather(*task, return_exceptions=True)

        app.on_startup.append(begin)
        app.on_shutdown.append(end)

    async def overview(self, request: web.Request) -> web.Response:
        """Return everything as it is now."""
        _, text = await self._view.get()
        return web.Response(body=text + b"\n", headers={**HEADERS, "content-type": "application/json"})

    async def history(self, request: web.Request) -> web.Response:
        """Return the last hour."""
        return json_answer(self._history.to_dict())

    async def prefixes(self, request: web.Request) -> web.Response:
        """Return the hottest prefixes."""
        text = request.query.get("limit", str(DEFAULT_PREFIXES))
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_PREFIXES):
            raise MalformedRequestError(f"`limit` must be a whole number from 1 to {MAX_PREFIXES}", param="limit")
        async with self._listings:
            return json_answer(await self._source.prefixes(int(text)))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Tell what changes, until the reader leaves or the token is another one."""
        if len(self._streams) >= MAX_STREAMS:
            raise StreamsBusyError(f"{MAX_STREAMS} streams are open", retry_after_s=5)
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler runs in a task")
        self._streams.add(task)
        response = web.StreamResponse(
            headers={**HEADERS, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        )
        try:
            await response.prepare(request)
            await self._stream(response)
        except (ConnectionError, TimeoutError):
            pass  # the reader left, or does not read
        finally:
            self._streams.discard(task)
        return response

    async def _stream(self, response: web.StreamResponse) -> None:
        token, told = self._source.token(), self._newest
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        await _tell(response, "history", json.dumps(self._history.to_dict(), separators=(",", ":")).encode())
        prefixes_s = float("-inf")
        while self._source.token() == token:
            begun_s = time.monotonic()
            await _tell(response, "overview", (await self._view.get())[1])
            if self._newest is not told and self._newest is not None:
                told = self._newest
                await _tell(response, "sample", json.dumps(told, separators=(",", ":")).encode())
            if begun_s - prefixes_s >= PREFIXES_EVERY_S:
                prefixes_s = begun_s
                await _tell(response, "prefixes", (await self._prefixes.get())[1])
            await asyncio.sleep(max(0.05, VIEW_EVERY_S - (time.monotonic() - begun_s)))

    async def _keep_history(self) -> None:
        while True:
            self._newest = self._history.add(await self._source.totals(), time.time())
            await asyncio.sleep(EVERY_S)

    async def _make_view(self) -> dict[str, Any]:
        return {"at": round(time.time(), 3), **await self._source.view()}


async def _tell(response: web.StreamResponse, event: str, data: bytes) -> None:
    async with asyncio.timeout(WRITE_S):
        await response.write(b"event: " + event.encode() + b"\ndata: " + data + b"\n\n")
