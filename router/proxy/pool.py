"""Connections to engines: kept while they are surely open, never more idle ones than are useful."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable

from router.proxy.deadlines import NEVER, Deadlines
from router.proxy.engine_connection import EngineConnection
from router.proxy.turn import Turn
from router.tls import EngineTls

IDLE_CONNECTIONS = 256
"""Idle connections kept for one replica."""

Address = tuple[str, int, bool]
"""Host, port, and whether it is spoken to by TLS."""

_log = logging.getLogger(__name__)


class Connecting:
    """One attempt to connect; `cancel` it when nobody wants it any more."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        """Give up. Neither callback is called."""
        self._task.cancel()


class EnginePool:
    """Hands out connections by address and takes them back.

    Args:
        idle_s: An idle connection is used no more after this. Engines close theirs too (vLLM after 5 s); a request sent
            at that very moment is lost, so ours must be shorter.
        connect_s: Longest time to connect.
        tls: How to speak to engines by TLS; None: the system's CAs.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        turn: Turn,
        *,
        idle_s: float,
        connect_s: float,
        tls: EngineTls | None = None,
    ) -> None:
        self._tls = tls
        self._loop = loop
        self._deadlines = deadlines
        self._turn = turn
        self._idle_s = idle_s
        self._connect_s = connect_s
        self._idle: dict[Address, deque[EngineConnection]] = {}
        self._addresses: dict[EngineConnection, Address] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.deadline_s = NEVER
        deadlines.watch(self)

    def configure(self, *, idle_s: float, connect_s: float) -> None:
        """Take over other times, for connections that are opened or given back from now on."""
        self._idle_s = idle_s
        self._connect_s = connect_s

    @property
    def open_count(self) -> int:
        """Connections, idle or not."""
        return len(self._addresses)

    def idle_count(self, address: Address) -> int:
        """Idle connections to one replica."""
        return len(self._idle.get(address, ()))

    def take(self, address: Address) -> EngineConnection | None:
        """Return an idle connection that is open and young enough, the one used last; None when there is none."""
        idle = self._idle.get(address)
        if idle:
            now_s = time.monotonic()
            while idle:
                connection = idle.pop()
                if now_s < connection.idle_until_s and connection.usable:
                    return connection
                connection.abort()
        return None

    def connect(
        self,
        address: Address,
        connected: Callable[[EngineConnection], None],
        failed: Callable[[OSError], None],
    ) -> Connecting:
        """Open a connection; exactly one of the two is called, later, unless it is cancelled.

        What else than an OSError goes wrong (a host that is no name raises UnicodeError) is handed to `failed` as one.
        """
        task = self._loop.create_task(self._connect(address, connected, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Connecting(task)

    def close(self) -> None:
        """Close all connections; no more are kept."""
        self._closed = True
        self._deadlines.unwatch(self)
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._addresses):
            connection.abort()
        self._idle.clear()

    async def _connect(
        self,
        address: Address,
        connected: Callable[[EngineConnection], None],
        failed: Callable[[OSError], None],
    ) -> None:
        connection = EngineConnection(self, self._turn)
        try:
            async with asyncio.timeout(self._connect_s):
                await self._open(connection, address)
        except asyncio.CancelledError:
            connection.abort()  # it may have been made at this very moment
            raise
        except Exception as error:
            connection.abort()
            failed(error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}"))
            return
        if not connection.usable:
            failed(ConnectionResetError("closed at once"))
            return
        self._addresses[connection] = address
        try:
            connected(connection)
        except Exception:
            # Nobody awaits this task. Whoever took the connection hears of its end.
            _log.exception("internal error with a new connection to %s:%d", *address[:2])
            connection.abort()

    async def _open(self, connection: EngineConnection, address: Address) -> None:
        host, port, secure = address
        if not secure:
            await self._loop.create_connection(lambda: connection, host, port)
            return
        if self._tls is None:
            self._tls = EngineTls(ssl.create_default_context())
        name = self._tls.server_name or host
        await self._loop.create_connection(lambda: connection, host, port, ssl=self._tls.context, server_hostname=name)

    # -- for connections ----------------------------------------------------------------------------------------------

    def connection_idle(self, connection: EngineConnection) -> None:
        """An answer is complete; the connection may serve again."""
        address = self._addresses.get(connection)
        if address is None or self._closed:
            connection.abort()
            return
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle[address] = deque()
        if len(idle) >= IDLE_CONNECTIONS:
            idle.popleft().abort()
        connection.idle_until_s = time.monotonic() + self._idle_s
        idle.append(connection)
        if self.deadline_s == NEVER:
            self.deadline_s = connection.idle_until_s

    def connection_closed(self, connection: EngineConnection) -> None:
        """A connection is gone."""
        address = self._addresses.pop(connection, None)
        idle = self._idle.get(address) if address is not None else None
        if idle is not None and connection in idle:
            idle.remove(connection)

    # -- for Deadlines ------------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        """Close what was idle for too long. The least recently used are on the left."""
        next_s = NEVER
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].idle_until_s <= now_s or not idle[0].usable):
                idle.popleft().abort()
            if idle:
                next_s = min(next_s, idle[0].idle_until_s)
            else:
                del self._idle[address]
        self.deadline_s = next_s
