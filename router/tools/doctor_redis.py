"""Looks at the Redis (or Valkey) that agents and routers share: the server itself, and the keys of each unit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import redis

from router.kv.keys import Keys
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
        url: redis://, rediss:// or unix://, with credentials where it wants them.
        keys: The fleet's names.
        secret: `registration.secret`; None: leases are read without a check of their signature.
    """
    facts = RedisFacts(shown(url))
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
            _look(client, facts, keys, secret)
    except (redis.RedisError, ValueError, OSError) as error:
        facts.error = " ".join(str(error).split()) or type(error).__name__
    return facts


def shown(url: str) -> str:
    """Return a Redis URL without its credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _look(client: redis.Redis, facts: RedisFacts, keys: Keys, secret: bytes | None) -> None:
    begun_s = time.time()
    seconds, micros = client.time()
    ended_s = time.time()
    now_s = seconds + micros / 1e6
    facts.clock_ahead_s, facts.round_trip_s = now_s - (begun_s + ended_s) / 2, ended_s - begun_s
    try:
        facts.info = client.info()
    except redis.ResponseError as error:
        facts.unreadable["INFO"] = str(error)
    try:
        listed = cast("list[tuple[bytes, float]]", client.zrevrange(keys.registry, 0, MAX_UNITS - 1, withscores=True))
        facts.units = tuple(
            _unit(client, keys, name.decode(errors="replace"), now_s - score, secret) for name, score in listed
        )
    except redis.ResponseError as error:
        facts.unreadable["the units' keys"] = str(error)


def _unit(client: redis.Redis, keys: Keys, unit: str, age_s: float, secret: bytes | None) -> UnitKeys:
    lease = cast("bytes | None", client.get(keys.lease(unit)))
    registration, problem = None, ""
    if lease is not None:
        try:
            registration = decode(lease, secret, unit)
        except RegistrationError as error:
            problem = str(error)
    has_epoch = bool(client.exists(keys.epoch(unit)))
    return UnitKeys(unit, age_s, registration, problem, has_epoch, bool(client.exists(keys.snapshot_pointer(unit))))
