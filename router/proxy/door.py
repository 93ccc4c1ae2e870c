"""What all client connections of a listener share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from router.config_bounds import LimitsConfig, TimeoutsConfig
from router.errors import PathNotFoundError, WarmrouteError
from router.proxy.deadlines import Deadlines
from router.proxy.exchange import Exchange, Request
from router.proxy.paths import AllowedPaths
from router.proxy.turn import Turn

AdminHandoff = Callable[[asyncio.Transport, bytes], asyncio.Protocol]
"""Takes over a connection: sets the transport's protocol and feeds it the bytes that were read."""


class Gate(Protocol):
    """Knows whose a request is, and whether it may come in."""

    def admit(self, request: Request) -> WarmrouteError | None:
        """Look at a request's head before its body is read; return why it may not come in."""


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
        gate: Set when there are tenants.
        aborts_half_closed: A client that has finished sending has left.
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
    turn: Turn
    gate: Gate | None = None
    aborts_half_closed: bool = False
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

    def objection(self, request: Request, *, is_path: bool) -> WarmrouteError | None:
        """Return why a request is not served, before its body is read; `is_path`: its path is in the allow-list."""
        if not is_path:
            return PathNotFoundError("this path is not served; see `paths` in the router's configuration")
        return None if self.gate is None else self.gate.admit(request)

    def leave(self, connection: Closable) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()
