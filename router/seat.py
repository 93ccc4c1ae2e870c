"""A worker's place among those that serve one address together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.config import RouterConfig
from router.shared_load import SharedLoad


@dataclass(frozen=True, slots=True)
class Seat:
    """What a worker is given.

    Attributes:
        number: From 0.
        sockets: Bound to the address of clients, this worker's own.
        admin_path: Unix socket where it answers its supervisor, and nobody else.
        admin_handoff: Takes connections of clients that ask for admin: the supervisor answers those.
        load: What the other workers have in flight.
    """

    number: int
    sockets: Sequence[socket.socket]
    admin_path: Path
    admin_handoff: Callable[[asyncio.Transport, bytes], asyncio.Protocol]
    load: SharedLoad


def share_of(config: RouterConfig, workers: int) -> RouterConfig:
    """Return the configuration of one of so many workers: what bounds the router as a whole is divided among them.

    A worker can always hold one body of `limits.body_bytes`.
    """
    limits = config.limits
    return config.model_copy(
        update={
            "limits": limits.model_copy(
                update={
                    "buffered_bytes": max(limits.body_bytes, limits.buffered_bytes // workers),
                    "connections": -(-limits.connections // workers),
                    "token_cache_bytes": limits.token_cache_bytes // workers,
                    "queue_requests": -(-limits.queue_requests // workers),
                }
            )
        }
    )
