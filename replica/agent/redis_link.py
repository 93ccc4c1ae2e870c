"""The connection to Redis: made so that every failure comes back to the caller, soon and without a retry of its own."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

TIMEOUT_S = 2.0


def connect(url: str) -> Redis:
    """Return a client; it connects when it is used. The URL has passed `router.kv.redis_url.check_redis_url`."""
    return Redis.from_url(
        url,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )


def shown(url: str) -> str:
    """Return host and port, without user and password: fit for logs."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
