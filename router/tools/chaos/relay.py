"""A TCP relay that can cut, reset, stall and refuse, and that can lose single event messages on the way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field

from router.tools.chaos.frames import Mangler, MessageReader

_READ_BYTES = 65_536
_NO_LINGER = struct.pack("ii", 1, 0)
"""A socket with this that is closed sends RST."""


@dataclass(slots=True, eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Relay:
    """Listens at a free port of the loopback interface and joins each connection to one of `port`.

    Args:
        port: Where the server listens; it may be changed while the relay runs.
        mangler: Strikes the messages that the server sends; the connection is ZMTP then.
    """

    def __init__(self, port: int, mangler: Mangler | None = None) -> None:
        self.port = port
        self.refusing = False
        """New connections are reset at once."""
        self._mangler = mangler
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; return the relay's own port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        self._flowing.set()
        self.end_connections(reset=True)
        await asyncio.sleep(0)

    def stall(self, stalled: bool) -> None:
        """Let nothing pass in either direction, or everything again. Connections are made and kept meanwhile."""
        if stalled:
            self._flowing.clear()
        else:
            self._flowing.set()

    def end_connections(self, *, reset: bool) -> None:
        """Close every connection at both ends, with RST or with FIN."""
        for connection in list(self._connections):
            self._end(connection, reset=reset)

    def send_held(self) -> None:
        """Send what the mangler holds back."""
        if self._mangler is None:
            return
        held = b"".join(self._mangler.release())
        for connection in list(self._connections)[-1:]:
            connection.client.write(held)

    def _end(self, connection: _Connection, *, reset: bool) -> None:
        self._connections.discard(connection)
        if self._mangler is not None:
            self._mangler.connection_lost()
        for writer in (connection.client, connection.server):
            if writer is not None:
                _close(writer, reset=reset)
        for task in connection.tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            _close(writer, reset=True)
            return
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            from_server, connection.server = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            self._end(connection, reset=True)
            return
        if connection not in self._connections:
            _close(connection.server, reset=True)
            return
        messages = MessageReader() if self._mangler is not None else None
        connection.tasks = [
            asyncio.create_task(self._pump(reader, connection.server, None)),
            asyncio.create_task(self._pump(from_server, writer, messages)),
        ]
        await asyncio.wait(connection.tasks, return_when=asyncio.FIRST_COMPLETED)
        self._end(connection, reset=False)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, messages: MessageReader | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                await self._flowing.wait()
                if messages is not None and self._mangler is not None:
                    data = b"".join(self._mangled(messages, self._mangler, data))
                writer.write(data)
                await writer.drain()

    def _mangled(self, messages: MessageReader, mangler: Mangler, data: bytes) -> list[bytes]:
        passed: list[bytes] = []
        for is_message, part in messages.feed(data):
            passed += mangler.pass_on(part) if is_message else [part]
        return passed


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        plain = writer.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        writer.transport.abort()
    else:
        writer.close()
