"""The agent's connection to Redis."""

from __future__ import annotations

from router.kv.client.client import RedisClient
from router.kv.redis_url import parse_redis_url

TIMEOUT_S = 2.0


def connect(url: str) -> RedisClient:
    """Return a client; it connects when it is used. The URL has passed `router.kv.redis_url.check_redis_url`."""
    return RedisClient(url, TIMEOUT_S)


def shown(url: str) -> str:
    """Return where Redis is, without user and password: fit for logs."""
    return parse_redis_url(url).shown
