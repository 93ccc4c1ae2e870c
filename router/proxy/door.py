"""What all client connections of a listener share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from router.config import LimitsConfig, TimeoutsConfig
from router.errors import WarmrouteError
from router.proxy.deadlines import Deadlines
from router.proxy.exchange import Exchange
from router.proxy.paths import AllowedPaths

AdminHandoff = Callable[[asyncio.Transport, bytes], asyncio.Protocol]
"""Takes over a connection: sets the transport's protocol and feeds it the bytes that were read."""


class Closable(Protocol):
    """A client's connection, as the door sees it."""

    def drain(self) -> None:
        """Close now if nothing is being asked or answered."""

    def kill(self) -> None:
        """Close at once, whatever is running."""


class ByteBudget:
    """Bytes that all request bodies together may hold."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def limit(self, limit_bytes: int) -> None:
        """Change what they may hold; what was taken stays."""
        self._limit_bytes = limit_bytes

    def take(self, size_bytes: int) -> bool:
        """Reserve; False when it would be too much."""
        if self.used_bytes + size_bytes > self._limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Give back what was taken."""
        self.used_bytes -= size_bytes


@dataclass(slots=True, eq=False)
class Door:
    """Limits, the connections that are open, and whom their requests go to.

    Attributes:
        serve: Called with each complete request.
        refuse: Called with an exchange that is no request to serve, and why.
        admin_handoff: Set when health, metrics and admin share this port.
        draining: Answers end their connections.
        closing: Connections close as soon as nothing runs on them.
        emptied: Set when the last connection has left.
    """

    loop: asyncio.AbstractEventLoop
    limits: LimitsConfig
    timeouts: TimeoutsConfig
    paths: AllowedPaths
    deadlines: Deadlines
    serve: Callable[[Exchange], None]
    refuse: Callable[[Exchange, WarmrouteError], None]
    new_request_id: Callable[[], str]
    budget: ByteBudget
    admin_handoff: AdminHandoff | None = None
    draining: bool = False
    closing: bool = False
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[Closable] = field(default_factory=set)

    def enter(self, connection: Closable) -> bool:
        """Count a connection; False when there are more than `limits.connections`."""
        self.connections.add(connection)
        self.emptied.clear()
        return len(self.connections) <= self.limits.connections

    def leave(self, connection: Closable) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()
