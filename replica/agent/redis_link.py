"""The connection to Redis: made so that every failure comes back to the caller, soon and without a retry of its own."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

TIMEOUT_S = 2.0


def connect(url: str) -> Redis:
    """Return a client; it connects when it is used. Raises ValueError for a malformed URL."""
    check_url(url)
    return Redis.from_url(
        url,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )


def check_url(url: str) -> None:
    """Raise ValueError where the URL can't name a Redis."""
    parse_url(url)
    parts = urlsplit(url)
    _ = parts.port  # raises for what is no port
    if parts.scheme != "unix" and not parts.hostname:
        raise ValueError("the host is missing")


def shown(url: str) -> str:
    """Return host and port, without user and password: fit for logs."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
