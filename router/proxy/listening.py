"""The sockets that clients connect to, and who accepts from them.

The sockets outlive their servers: a server works on a duplicate, so that another one (with a new certificate) can take
its place without a moment in which nobody listens, and a supervisor's worker can accept from sockets that are not its
own.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

from router.config import split_address

BACKLOG = 4_096
"""Connections that the kernel accepts ahead of us; it takes no more than net.core.somaxconn."""


def bind(address: str, *, shared: bool = False) -> list[socket.socket]:
    """Bind to every address that a host stands for; all have one port, also where any free one is asked for.

    Args:
        address: HOST:PORT.
        shared: More sockets are bound to the same address, and the kernel spreads connections over them.

    Raises:
        OSError: It can't be bound to.
    """
    host, port = split_address(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, place in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            bound.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setblocking(False)
            made.bind((place[0], port or bound[0].getsockname()[1], *place[2:]))
    except BaseException:
        for made in bound:
            made.close()
        raise
    return bound


def url_of(bound: socket.socket, *, secure: bool) -> str:
    """Return a socket's address as a URL."""
    name = bound.getsockname()
    scheme = "https" if secure else "http"
    return f"{scheme}://[{name[0]}]:{name[1]}" if ":" in name[0] else f"{scheme}://{name[0]}:{name[1]}"


class Listening:
    """Accepts connections.

    Args:
        protocol: Makes what serves one connection.
        tls: For connections that are accepted from now on; None: plain.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = loop
        self._protocol = protocol
        self._tls = tls
        self._servers: dict[socket.socket, asyncio.Server] = {}
        self._turn = asyncio.Lock()

    @property
    def secure(self) -> bool:
        """Whether connections are by TLS."""
        return self._tls is not None

    async def accept_from(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from these sockets too."""
        async with self._turn:
            for bound in sockets:
                if bound not in self._servers:
                    self._servers[bound] = await self._server(bound)

    async def leave(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from these sockets no more; connections that were accepted stay, and so do the sockets."""
        async with self._turn:
            for bound in sockets:
                server = self._servers.pop(bound, None)
                if server is not None:
                    server.close()

    async def use(self, tls: ssl.SSLContext | None) -> None:
        """Use another certificate from the next connection on."""
        async with self._turn:
            self._tls = tls
            for bound, former in list(self._servers.items()):
                self._servers[bound] = await self._server(bound)
                former.close()

    def close(self) -> None:
        """Accept nothing more, and close the sockets."""
        for bound, server in self._servers.items():
            server.close()
            bound.close()
        self._servers.clear()

    async def _server(self, bound: socket.socket) -> asyncio.Server:
        return await self._loop.create_server(self._protocol, sock=bound.dup(), backlog=BACKLOG, ssl=self._tls)
