"""Serves the admin application, and answers what is no HTTP in the shape of every other error."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from router.admin.replies import refusal
from router.errors import MalformedRequestError, WarmrouteError

HTTP_LOG = logging.getLogger("warmroute.admin.http")
"""For the runner of the application."""
SHUTDOWN_S = 1.0


class _OursAlone(logging.Filter):
    """Drops what aiohttp logs, with a traceback, of requests that are no HTTP: clients' faults, answered with 400."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is None or not issubclass(kind, HttpProcessingError)


HTTP_LOG.addFilter(_OursAlone())


class AdminRunner(web.AppRunner):
    """aiohttp's runner, with our words for its own errors."""

    def __init__(self, app: web.Application, shutdown_timeout: float = SHUTDOWN_S) -> None:
        super().__init__(app, access_log=None, handle_signals=False, logger=HTTP_LOG, shutdown_timeout=shutdown_timeout)

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return _Server(server.request_handler, request_factory=server.request_factory, **server._kwargs)

    def protocol(self) -> asyncio.Protocol:
        """Return what serves a new connection."""
        if self.server is None:
            raise RuntimeError("the admin runner is not set up")
        return self.server()

    def take_over(self, transport: asyncio.Transport, read: bytes) -> asyncio.Protocol:
        """Take a connection of the data plane, with the bytes that were read of it."""
        protocol = self.protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(read)
        return protocol


class _Protocol(web.RequestHandler):
    """A connection of admin's."""

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what aiohttp could not read, or what failed in its own hands."""
        super().handle_error(request, status, exc, message)  # logs, and raises when an answer has begun
        error: WarmrouteError
        if status == MalformedRequestError.http_status:
            error = MalformedRequestError("malformed HTTP request")
        else:
            error = WarmrouteError("the router failed to answer; its log says why")
        answer = refusal(error)
        answer.force_close()
        return answer


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)
