"""Carries a client's connection to the supervisor's admin, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

MAX_WAITING_BYTES = 256 * 1024


def relay_to(path: Path) -> Callable[[asyncio.Transport, bytes], asyncio.Protocol]:
    """Return what takes over a connection, with the bytes that were read of it, and carries it to a Unix socket."""

    def take_over(transport: asyncio.Transport, read: bytes) -> asyncio.Protocol:
        near, far = _Side(), _Side()
        near.other, far.other = far, near
        near.transport = transport
        transport.set_protocol(near)
        near.data_received(read)
        loop = asyncio.get_running_loop()
        near.connecting = loop.create_task(_connect(loop, path, near, far))
        return near

    return take_over


async def _connect(loop: asyncio.AbstractEventLoop, path: Path, near: _Side, far: _Side) -> None:
    try:
        await loop.create_unix_connection(lambda: far, str(path))
    except OSError:
        near.close()


class _Side(asyncio.Protocol):
    """One of the two connections; what comes in goes out at the other."""

    def __init__(self) -> None:
        self.other: _Side
        self.transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self._waiting = b""
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's do not derive from asyncio's
        if self._gone:
            self.close()
        elif self._waiting:
            waiting, self._waiting = self._waiting, b""
            self.transport.write(waiting)  # type: ignore[union-attr]
            self.resume_writing()

    def send(self, data: bytes) -> None:
        """Write, or keep until there is a connection."""
        if self.transport is not None:
            self.transport.write(data)
            return
        self._waiting += data
        if len(self._waiting) > MAX_WAITING_BYTES:
            self.pause_writing()

    def close(self) -> None:
        """Close once all is written."""
        self._gone = True
        if self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.other.send(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self.other.close()
