"""Looks at the Redis (or Valkey) that agents and routers share: the server itself, and the keys of each unit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from redis.exceptions import ResponseError

from router.kv.client.client import RedisClient, RedisError
from router.kv.client.faults import told
from router.kv.keys import Keys
from router.kv.redis_url import RedisUrlError
from router.kv.registration import Registration, RegistrationError, decode

TIMEOUT_S = 3.0
MAX_UNITS = 5_000


@dataclass(frozen=True, slots=True)
class UnitKeys:
    """What Redis holds of one unit of the registry.

    Attributes:
        age_s: Seconds since its last renewal, by Redis' own clock.
        registration: Its lease; None when there is none or it is not believed.
        problem: Why the lease is not believed; empty when it is, or when there is none.
        has_epoch: Whether its fence is there.
        has_snapshot: Whether it has a whole snapshot.
    """

    unit: str
    age_s: float
    registration: Registration | None
    problem: str
    has_epoch: bool
    has_snapshot: bool


@dataclass(slots=True)
class RedisFacts:
    """What was found.

    Attributes:
        address: Without credentials.
        error: Why it can't be used, or empty.
        info: Its INFO, as far as it may be read.
        clock_ahead_s: Of its clock against this machine's, within half a round trip; None where unknown.
        round_trip_s: Of a TIME command.
        units: The registry.
        unreadable: Commands that were refused, with what it said.
    """

    address: str
    error: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    clock_ahead_s: float | None = None
    round_trip_s: float = 0.0
    units: tuple[UnitKeys, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def server(self) -> str:
        """Its name and version."""
        if version := self.info.get("valkey_version"):
            return f"Valkey {version}"
        return f"Redis {self.info.get('redis_version', '(version unknown)')}"

    @property
    def major(self) -> int | None:
        """Its major version, or None where it does not say."""
        head = str(self.info.get("valkey_version") or self.info.get("redis_version") or "").partition(".")[0]
        return int(head) if head.isdigit() else None


def look(url: str, keys: Keys, secret: bytes | None) -> RedisFacts:
    """Ask the server. Raises nothing for what it answers.

    Args:
        url: Of any kind, with credentials where it wants them.
        keys: The fleet's names.
        secret: `registration.secret`; None: leases are read without a check of their signature.
    """
    facts = RedisFacts(shown(url))
    try:
        asyncio.run(_look(url, facts, keys, secret))
    except (RedisError, RedisUrlError, OSError, TimeoutError) as error:
        facts.error = told(error)
    return facts


def shown(url: str) -> str:
    """Return a Redis URL without its credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def _look(url: str, facts: RedisFacts, keys: Keys, secret: bytes | None) -> None:
    client = RedisClient(url, TIMEOUT_S)
    registry = keys.registry
    try:
        begun_s = time.time()
        seconds, micros = await client.run(registry, "TIME")
        ended_s = time.time()
        now_s = int(seconds) + int(micros) / 1e6
        facts.clock_ahead_s, facts.round_trip_s = now_s - (begun_s + ended_s) / 2, ended_s - begun_s
        try:
            facts.info = await client.run(registry, "INFO")
        except ResponseError as error:
            facts.unreadable["INFO"] = str(error)
        try:
            listed = await client.run(registry, "ZREVRANGE", registry, 0, MAX_UNITS - 1, "WITHSCORES")
            pairs = listed if listed and isinstance(listed[0], list | tuple) else _pairs(listed)
            facts.units = tuple(
                [
                    await _unit(client, keys, name.decode(errors="replace"), now_s - float(score), secret)
                    for name, score in pairs
                ]
            )
        except ResponseError as error:
            facts.unreadable["the units' keys"] = str(error)
    finally:
        await client.close()


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


async def _unit(client: RedisClient, keys: Keys, unit: str, age_s: float, secret: bytes | None) -> UnitKeys:
    lease = await client.run(keys.lease(unit), "GET", keys.lease(unit))
    registration, problem = None, ""
    if lease is not None:
        try:
            registration = decode(lease, secret, unit)
        except RegistrationError as error:
            problem = str(error)
    there = [bool(await client.run(key, "EXISTS", key)) for key in (keys.epoch(unit), keys.snapshot_pointer(unit))]
    return UnitKeys(unit, age_s, registration, problem, *there)
