"""Carries a response's tokens from the engine to its client.

Tokens arrive by plain calls out of the engine's step, and a streamed one is written to the connection in that same
call: no task is woken for each token of each stream. The framework still owns the connection, its head and its end;
only the chunks between are framed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from replica.simengine.choices import Choice
from replica.simengine.engine import Engine
from replica.simengine.formats import Format


class Answer:
    """A response under way.

    Attributes:
        ended: Set when every answer in it has ended.
    """

    def __init__(self, engine: Engine, form: Format) -> None:
        self._engine = engine
        self._form = form
        self._open = len(form.choices)
        self.ended = asyncio.Event()

    def sink(self, choice: Choice) -> Callable[[], None]:
        """Return what the engine calls after each token of `choice`."""
        return lambda: self.advance(choice)

    def advance(self, choice: Choice) -> None:
        """Take in one token."""
        choice.advance()
        self._close(choice)

    def abort(self) -> None:
        """Stop what is still being generated: nobody waits for it."""
        for choice in self._form.choices:
            self._engine.end(choice.request, "abort")

    def _close(self, choice: Choice) -> None:
        if choice.finish_reason is None:
            return
        if choice.request.finish_reason is None:
            self._engine.end(choice.request, "stop")
        self._open -= 1
        if not self._open:
            self.ended.set()


class StreamedAnswer(Answer):
    """A response that is sent token by token as server-sent events."""

    def __init__(self, engine: Engine, form: Format, break_after_tokens: int) -> None:
        super().__init__(engine, form)
        self._break_after = break_after_tokens
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._early = bytearray()
        self._opened = False
        self._tokens = 0

    def connect(self, response: web.StreamResponse, request: web.Request) -> None:
        """Let tokens flow; the response's head has been sent."""
        self._transport = request.transport
        self._chunked = response.headers.get("Transfer-Encoding") == "chunked"
        if self._early:
            early, self._early = bytes(self._early), bytearray()
            self._write(early)

    def advance(self, choice: Choice) -> None:
        """Take in one token and send what it adds."""
        delta = choice.advance()
        data = bytearray()
        if not self._opened:
            self._opened = True
            for chunk in self._form.opening():
                data += b"data: " + chunk + b"\n\n"
        data += b"data: " + self._form.chunk(choice, delta) + b"\n\n"
        self._write(bytes(data))
        self._tokens += 1
        if self._break_after and self._tokens >= self._break_after and self._transport is not None:
            self._transport.abort()
        self._close(choice)

    def finish(self, *, include_usage: bool) -> None:
        """Send what comes after the last token."""
        usage = b"data: " + self._form.usage_chunk() + b"\n\n" if include_usage else b""
        self._write(usage + b"data: [DONE]\n\n")

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            self._early += data
        elif not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
