"""A router one wire version behind its agents, and one ahead of them, over a real Valkey."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from router.fleet.replica import ReplicaState
from router.kv import registration as reg
from router.kv import wire
from router.kv.wire import BlocksBatch, Change


async def test_a_router_follows_agents_of_the_next_version(
    run_feeds: Callable[..., Any],
    engines: Callable[..., Any],
    writer: Callable[..., Any],
    redis_url: str,
    redis: Redis,
    eventually: Any,
) -> None:
    """Lease, snapshot and batches are of version + 1, with fields and kinds that this router does not know."""
    agent = writer("r0/0")
    later = wire.WIRE_VERSION + 1

    async def add(*fields: Any) -> None:
        data = msgspec.msgpack.encode([later, *fields, "new"])
        await redis.xadd(agent.keys.stream_of("r0/0"), {"d": data})

    def body(message: wire.Message) -> list[Any]:
        fields: list[Any] = msgspec.msgpack.decode(wire.encode(message))
        return fields[1:]

    await agent.register(url=(await engines()).url, wire=later)
    one = run_feeds(redis=redis_url)
    await eventually(lambda: one.fleet.units.get("r0/0") is not None)
    await add(99, "r0/0", {"what": "ever"})
    await add(*body(BlocksBatch("r0/0", 1, 1, (Change("stored", hashes=(1, 2, 3)),))))
    await add(*body(BlocksBatch("r0/0", 1, 2, (Change("removed", hashes=(2,)),))))
    await eventually(lambda: one.held("r0/0") == {1, 3})
    assert one.value("warmroute_feed_messages_total", kind="broken") == 0
    assert one.value("warmroute_feed_gaps_total") == 0


async def test_a_router_of_the_next_version_follows_agents_of_this_one(
    run_feeds: Callable[..., Any],
    engines: Callable[..., Any],
    redis_url: str,
    redis: Redis,
    golden: Path,
    writer: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
) -> None:
    """What was recorded of version 1 is in Redis, byte for byte: snapshot, batches behind it, heartbeat, draining."""
    record = json.loads((golden / "wire" / "v1.json").read_text())
    unit, epoch = "pod-7/1", 1_764_500_000_000_000
    messages = {name: bytes.fromhex(data) for name, data in record["messages"].items()}
    monkeypatch.setattr(wire, "WIRE_VERSION", 2)
    monkeypatch.setattr(reg, "WIRE_VERSION", 2)
    old = writer(unit, epoch=epoch)
    keys = old.keys
    await redis.rpush(keys.snapshot(unit, "n"), *(bytes.fromhex(chunk) for chunk in record["snapshot"]))
    await redis.set(keys.snapshot_pointer(unit), "n")
    await redis.xadd(keys.stream_of(unit), {"d": messages["ready"]}, id="1764500000000-3")
    lease = reg.encode(old.registration(wire=1, url=(await engines()).url), None)
    await redis.set(keys.lease(unit), lease)
    await redis.zadd(keys.registry, {unit: time.time()})
    one = run_feeds(redis=redis_url)
    await eventually(lambda: len(one.held(unit)) == 300)  # group 3 of the CPU tier is a window: not kept
    await redis.xadd(keys.stream_of(unit), {"d": messages["heartbeat"]})
    await eventually(lambda: (load := one.fleet.units[unit].load) is not None and load.running == 3)
    assert one.fleet.replicas["pod-7"].state(time.monotonic()) is ReplicaState.READY
    assert one.value("warmroute_feed_messages_total", kind="broken") == 0
