"""A router one wire version behind its agents, and one ahead of them, over a real Valkey."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec

from router.fleet.replica import ReplicaState
from router.kv import registration as reg
from router.kv import wire
from router.kv.wire import BlocksBatch, Change


async def test_a_router_follows_agents_of_the_next_version(stage: Any) -> None:
    """Lease, snapshot and batches are of version + 1, with fields and kinds that this router does not know."""
    later = wire.WIRE_VERSION + 1
    agent = await stage.registered(wire=later)

    async def add(*fields: Any) -> None:
        data = msgspec.msgpack.encode([later, *fields, "new"])
        await stage.redis.xadd(agent.keys.stream_of("r0/0"), {"d": data})

    def body(message: wire.Message) -> list[Any]:
        fields: list[Any] = msgspec.msgpack.decode(wire.encode(message))
        return fields[1:]

    one = stage.router()
    await stage.eventually(lambda: one.fleet.units.get("r0/0") is not None)
    await add(99, "r0/0", {"what": "ever"})
    await add(*body(BlocksBatch("r0/0", 1, 1, (Change("stored", hashes=(1, 2, 3)),))))
    await add(*body(BlocksBatch("r0/0", 1, 2, (Change("removed", hashes=(2,)),))))
    await stage.eventually(lambda: one.held("r0/0") == {1, 3})
    assert one.value("warmroute_feed_messages_total", kind="broken") == 0
    assert one.value("warmroute_feed_gaps_total") == 0


async def test_a_router_follows_agents_of_the_version_before(stage: Any, golden: Path) -> None:
    """What was recorded of version 1 is in Redis, byte for byte: snapshot, batches behind it, heartbeat, draining."""
    record = json.loads((golden / "wire" / "v1.json").read_text())
    unit, epoch = "pod-7/1", 1_764_500_000_000_000
    messages = {name: bytes.fromhex(data) for name, data in record["messages"].items()}
    old = stage.agent(unit, epoch=epoch)
    keys = old.keys
    await stage.redis.rpush(keys.snapshot(unit, "n"), *(bytes.fromhex(chunk) for chunk in record["snapshot"]))
    await stage.redis.set(keys.snapshot_pointer(unit), "n")
    await stage.redis.xadd(keys.stream_of(unit), {"d": messages["ready"]}, id="1764500000000-3")
    lease = reg.encode(old.registration(wire=1, url=(await stage.engine()).url), None)
    await stage.redis.set(keys.lease(unit), lease)
    await stage.redis.zadd(keys.registry, {unit: time.time()})
    one = stage.router()
    await stage.eventually(lambda: len(one.held(unit)) == 303)  # 300 of group 0, and three more of a window
    await stage.redis.xadd(keys.stream_of(unit), {"d": messages["heartbeat"]})
    await stage.eventually(lambda: (load := one.fleet.units[unit].load) is not None and load.running == 3)
    assert one.fleet.replicas["pod-7"].state(time.monotonic()) is ReplicaState.READY
    assert one.value("warmroute_feed_messages_total", kind="broken") == 0
