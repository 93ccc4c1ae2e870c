"""Where a key is: the seam between commands and the kinds of Redis there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redis.exceptions import ConnectionError as RedisConnectionError

from router.kv.client.server import Server
from router.kv.redis_slots import SlotMap
from router.kv.redis_url import Address

NewServer = Callable[[Address | str], Server]
"""Makes a server of the target's login, TLS and database."""


class WrongKindError(RedisConnectionError):
    """What answers is of another kind than the URL says, and can't be used so."""


class ClusterFoundError(RedisConnectionError):
    """A URL of one server leads to a node of a Cluster."""


class Topology(Protocol):
    """One kind of Redis."""

    @property
    def is_spread(self) -> bool:
        """Whether keys lie on several servers, of which some may fail alone."""
        ...

    @property
    def slots(self) -> SlotMap | None:
        """What is known of a Cluster's slots; None for other kinds."""
        ...

    async def server_of(self, key: str) -> Server:
        """Return the server that has a key. Raises RedisError, OSError, TimeoutError."""
        ...

    def moved(self, key: str, host: str, port: int, asked: Server) -> None:
        """A server says that a key's slot is somewhere else for good; no host: the one that was asked."""
        ...

    def asked_of(self, host: str, port: int, asked: Server) -> Server:
        """Return the server that a redirection by ASK names."""
        ...

    async def failed(self, server: Server, error: BaseException) -> None:
        """A command on a server had no answer, or one that says something of the server."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
