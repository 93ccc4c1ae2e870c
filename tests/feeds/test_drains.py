"""Orders to drain: at once here, in every other router through Redis, kept over a restart, and undone everywhere."""

from __future__ import annotations

import time
from typing import Any

from router.fleet.replica import ReplicaState
from router.kv import drains as wire
from router.kv.keys import Keys

SECRET = "a secret of sixteen bytes or more"
SIGNED: dict[str, Any] = {"registration": {"secret": SECRET}}


def state(running: Any, replica_id: str) -> ReplicaState | None:
    replica = running.fleet.replicas.get(replica_id)
    return None if replica is None else replica.state(time.monotonic())


async def two_that_are_ready(stage: Any, **config: Any) -> tuple[Any, Any]:
    """Two routers that have r0 ready, by its agent."""
    await stage.registered(**({"secret": SECRET} if config else {}))
    one, two = stage.router(**config), stage.router(**config)
    await stage.eventually(lambda: state(one, "r0") == state(two, "r0") == ReplicaState.READY)
    return one, two


async def test_an_order_reaches_every_router_and_one_that_restarts(stage: Any) -> None:
    """Given at one router it holds there at once, at the other soon, and at a third that starts later; undone at the
    third, it ends at all."""
    one, two = await two_that_are_ready(stage, **SIGNED)
    outcome = await one.feeds.drains.drain("r0", 60)
    assert state(one, "r0") is ReplicaState.DRAINING
    assert (outcome["state"], outcome["reaches"], outcome["told"], outcome["error"]) == (
        "draining",
        "fleet",
        True,
        None,
    )
    await stage.eventually(lambda: state(two, "r0") is ReplicaState.DRAINING)
    assert 55_000 < await stage.redis.pttl(Keys().drain("r0")) <= 60_001
    three = stage.router(**SIGNED)
    await stage.eventually(lambda: state(three, "r0") is not None)
    assert state(three, "r0") is ReplicaState.DRAINING
    await three.feeds.drains.undo("r0")
    await stage.eventually(lambda: {state(each, "r0") for each in (one, two, three)} == {ReplicaState.READY})


async def test_an_order_that_runs_out_is_over(stage: Any) -> None:
    """It is forgotten nowhere and holds for no longer than it was given for."""
    one, two = await two_that_are_ready(stage)
    await one.feeds.drains.drain("r0", 1.5)
    await stage.eventually(lambda: state(two, "r0") is ReplicaState.DRAINING)
    await stage.eventually(lambda: state(one, "r0") == state(two, "r0") == ReplicaState.READY)


async def test_an_order_without_redis_holds_here_and_is_written_later(stage: Any, relay: Any) -> None:
    """Redis is cut off: the outcome says that others do not know; back again, they do."""
    await stage.registered()
    one = stage.router(redis=f"redis://127.0.0.1:{relay.port}/0")
    await stage.eventually(lambda: state(one, "r0") is ReplicaState.READY)
    relay.cut()
    await stage.eventually(lambda: not one.feeds.redis.connected)
    outcome = await one.feeds.drains.drain("r0", 60)
    assert (outcome["state"], outcome["told"]) == ("draining", False)
    assert "Redis" in outcome["error"]
    assert await stage.redis.get(Keys().drain("r0")) is None
    relay.restore()
    await stage.eventually(lambda: one.feeds.redis.connected)
    assert await stage.redis.get(Keys().drain("r0")) is not None
    assert state(one, "r0") is ReplicaState.DRAINING


async def test_an_unsigned_order_empties_no_fleet(stage: Any) -> None:
    """With a secret, what anybody wrote to Redis is refused, and a key of a wrong type too."""
    await stage.redis.set(Keys().drain("r0"), wire.encode(wire.Drain("r0", time.time() + 60), None))
    await stage.redis.lpush(Keys().drain("r1"), "x")
    for unit in ("r0/0", "r1/0"):
        await stage.registered(unit, secret=SECRET)
    one = stage.router(**SIGNED)
    await stage.eventually(lambda: state(one, "r0") == state(one, "r1") == ReplicaState.READY)


async def test_a_replica_of_the_configuration_is_drained_here_alone(stage: Any) -> None:
    """Nothing is written to Redis, probes go on, and they do not bring it back."""
    engine = await stage.engine()
    one = stage.router(replicas=[{"url": engine.url}])
    await stage.eventually(lambda: state(one, "r0") is ReplicaState.READY and one.feeds.redis.connected)
    outcome = await one.feeds.drains.drain("r0", 60)
    assert (outcome["reaches"], outcome["told"], outcome["error"]) == ("this router", None, None)
    asked = engine.health_asked
    await stage.eventually(lambda: engine.health_asked > asked + 1)
    assert state(one, "r0") is ReplicaState.DRAINING
    assert await stage.redis.keys("*drain*") == []
    await one.feeds.drains.undo("r0")
    assert state(one, "r0") is ReplicaState.READY


async def test_a_drained_replica_stays_so_when_its_agent_comes(stage: Any) -> None:
    """The agent registers the address of a configured replica under another name: the order still holds."""
    engine = await stage.engine()
    one = stage.router(replicas=[{"url": engine.url}])
    await stage.eventually(lambda: state(one, "r0") is ReplicaState.READY)
    await one.feeds.drains.drain("r0", 60)
    await stage.agent("pod-7/0").register(url=engine.url)
    await stage.eventually(lambda: state(one, "pod-7") is not None)
    assert state(one, "pod-7") is ReplicaState.DRAINING


async def test_a_replica_that_nobody_knows(stage: Any) -> None:
    """None: there is nothing to drain, and nothing to undo."""
    one = stage.router()
    assert await one.feeds.drains.drain("r9", 60) is None
    assert await one.feeds.drains.undo("r9") is None
