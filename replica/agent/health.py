"""The agent's own HTTP side: /healthz and /metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from replica.errors import UsageError


class HealthServer:
    """Serves until closed.

    Args:
        status: JSON-able status of the agent.
        metrics: Prometheus text.
    """

    def __init__(self, status: Callable[[], dict[str, Any]], metrics: Callable[[], bytes]) -> None:
        self._status = status
        self._metrics = metrics
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._render)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> str:
        """Bind; return the URL. Raises UsageError when the address can't be bound."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise UsageError(
                [f"--listen: can't bind {host}:{port} ({error.strerror}); free it, or choose another port (0: any)"]
            ) from error
        bound = self._runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}"

    async def close(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text=json.dumps(self._status()), content_type="application/json")

    async def _render(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), content_type="text/plain", charset="utf-8")
