"""What somebody who may write to Redis, and does not know the secret, can do to routers; a real Valkey."""

from __future__ import annotations

import msgspec
import pytest

from router.feeds import redis_feed, redis_link
from router.feeds.redis_link import RedisLink
from router.kv import registration, wire
from router.kv.keys import Keys, lane_of
from router.kv.wire import BlocksBatch, Change, Heartbeat, StateChange

SECRET = "the secret of sixteen"
SIGNED = {"registration": {"secret": SECRET}}
LATER = 2**63 - 1


@pytest.fixture
async def fleet(redis_url, writer, run_feeds, eventually):
    """A router with signed leases, and ten replicas with a block each; the first two lie in one lane."""
    neighbour = next(name for name in map("b{}".format, range(1000)) if lane_of(f"{name}/0") == lane_of("a/0"))
    names = ["a", neighbour, *map("c{}".format, range(8))]
    writers = [writer(f"{name}/0", secret=SECRET.encode()) for name in names]
    for number, one in enumerate(writers):
        await one.register(url=f"http://127.0.0.1:{9001 + number}")
        await one.store(number)
    router = run_feeds(redis=redis_url, **SIGNED)
    await eventually(lambda: all(router.held(one.unit) for one in writers))
    return router, writers


async def test_a_key_of_a_wrong_type_costs_its_own_unit_alone(redis, fleet, eventually):
    """A list under a lease key is a missing lease; the other units' leases, batches and joins go on."""
    router, writers = fleet
    victim, other = writers[0], writers[1]
    await redis.delete(victim.keys.lease(victim.unit))
    await redis.rpush(victim.keys.lease(victim.unit), "x")
    await redis.rpush(victim.keys.lease("stranger/0"), "x")
    await redis.zadd(victim.keys.registry, {"stranger/0": int((await redis.time())[0])})
    await other.lease(url="http://127.0.0.1:9002", trust="approximate")
    await eventually(lambda: router.fleet.unit(other.unit).trust == "approximate")
    await writers[2].store(77)
    await eventually(lambda: 77 in router.held(writers[2].unit))
    assert router.value("warmroute_feed_losses_total") == 0


async def test_a_snapshot_that_is_none_costs_its_own_unit_alone(redis, fleet, eventually):
    """A pointer or a snapshot of a wrong type leaves its unit waiting, while one in the same lane is brought up."""
    router, (victim, other, *_) = fleet
    await redis.delete(victim.keys.snapshot_pointer(victim.unit))
    await redis.rpush(victim.keys.snapshot_pointer(victim.unit), "x")
    await victim.store(100, skip=1)
    at = await other.store(101, skip=1)
    await other.snapshot([1, 100, 101], at)
    await eventually(lambda: router.held(other.unit) == {1, 100, 101})
    assert router.value("warmroute_feed_losses_total") == 0


async def test_a_stream_id_that_redis_refuses_is_no_snapshot(redis, fleet, eventually):
    """A snapshot at 99999999999999999999-0 does not keep a lane from being read."""
    router, (victim, other, *_) = fleet
    head = [wire.WIRE_VERSION, 16, victim.unit, victim.epoch, victim.sequence + 2, "99999999999999999999-0"]
    await redis.rpush(victim.keys.snapshot(victim.unit, "bad"), msgspec.msgpack.encode([*head, 0, 1, []]))
    await redis.set(victim.keys.snapshot_pointer(victim.unit), "bad")
    await victim.store(100, skip=1)
    await eventually(lambda: router.value("warmroute_feed_gaps_total") == 1)
    await other.lease(url="http://127.0.0.1:9002", trust="approximate")
    await eventually(lambda: router.fleet.unit(other.unit).trust == "approximate")  # a round of leases has passed
    assert router.value("warmroute_feed_losses_total") == 0
    await victim.snapshot([3, 4])
    await eventually(lambda: router.held(victim.unit) == {3, 4})


async def test_a_lane_that_is_no_stream_costs_its_own_units_alone(redis, fleet, eventually):
    """Other lanes are read on; the lane itself is read again once its key is a stream."""
    router, writers = fleet
    victim = writers[0]
    others = [one for one in writers if lane_of(one.unit) != lane_of(victim.unit)]
    stream = victim.keys.stream_of(victim.unit)
    await redis.delete(stream)
    await redis.set(stream, "x")
    for one in others:
        await one.store(200)
    await eventually(lambda: all(200 in router.held(one.unit) for one in others))
    assert router.value("warmroute_feed_losses_total") == 0
    await redis.delete(stream)
    victim.sequence += 1
    await victim.snapshot([5, 6])
    await victim.store(7)
    await eventually(lambda: router.held(victim.unit) == {5, 6, 7})


async def test_a_registry_that_is_none_freezes_membership_alone(redis, fleet, eventually, caplog):
    """Nobody new joins, which is said once; leases and lanes of those who are there are read on."""
    router, (one, *_) = fleet
    await redis.delete(one.keys.registry)
    await redis.set(one.keys.registry, "x")
    for number in range(2):
        facts = {"url": "http://127.0.0.1:9001", "reason": f"round {number}"}
        await redis.set(one.keys.lease(one.unit), registration.encode(one.registration(**facts), one.secret))
        await eventually(lambda said=facts["reason"]: router.fleet.unit(one.unit).reason == said)
    await one.store(55)
    await eventually(lambda: 55 in router.held(one.unit))
    assert router.value("warmroute_feed_losses_total") == 0
    assert caplog.text.count("the registry can't be read") == 1


async def test_old_names_in_the_registry_do_not_hide_new_ones(redis, redis_url, monkeypatch):
    """When there are more names than a router reads, it reads those that were renewed last."""
    monkeypatch.setattr(redis_link, "MAX_UNITS", 2)
    now = int((await redis.time())[0])
    await redis.zadd(Keys().registry, {"old/0": now - 5, "new/0": now, "newer/0": now + 1})
    link = RedisLink(redis_url, Keys())
    await link.open()
    assert await link.units(60) == {"newer/0": now + 1, "new/0": now}
    await link.close()


@pytest.mark.parametrize("state", ["draining", "gone"])
@pytest.mark.parametrize("later", [0, LATER - 1])
async def test_an_unsigned_state_changes_nobody(fleet, eventually, state, later):
    """Whatever lanes say of draining and goodbyes, in this epoch or a later one: the signed lease decides."""
    router, writers = fleet
    for one in writers:
        await one.add(StateChange(one.unit, one.epoch + later, state))
    await writers[0].lease(url="http://127.0.0.1:9001", reason="a round of leases has passed")
    await eventually(lambda: router.fleet.unit(writers[0].unit).reason == "a round of leases has passed")
    assert len(router.fleet.replicas) == len(writers)
    assert not any(replica.draining for replica in router.fleet.replicas.values())
    for one in writers:
        await one.store(300)
    await eventually(lambda: all(300 in router.held(one.unit) for one in writers))


async def test_a_forged_epoch_voids_nothing(fleet, eventually):
    """A batch, heartbeat and snapshot of epoch 2^63-1 leave a unit's blocks and load; its true batches go on."""
    router, (victim, *_) = fleet
    await victim.heartbeat(3, 4, 0.5)
    await victim.add(BlocksBatch(victim.unit, LATER, 1, (Change("stored", 0, 0, 0, (666,)),)))
    await victim.add(Heartbeat(victim.unit, LATER, 9, 0, 0, 0.0))
    epoch, victim.epoch = victim.epoch, LATER
    await victim.snapshot([666])
    victim.epoch = epoch
    await victim.store(8)
    await eventually(lambda: router.held(victim.unit) == {0, 8})
    assert router.fleet.unit(victim.unit).load.waiting == 4
    assert router.value("warmroute_feed_gaps_total") == 0


async def test_a_true_epoch_is_followed_at_once(fleet, writer, eventually, monkeypatch):
    """The first message of a new life has its lease read: no round of leases is waited for."""
    monkeypatch.setattr(redis_feed, "ROUND_S", 60.0)
    router, (one, *_) = fleet
    await one.lease(url="http://127.0.0.1:9001", reason="the last round for a minute")
    await eventually(lambda: router.fleet.unit(one.unit).reason)
    again = writer(one.unit, epoch=2, secret=SECRET.encode())
    await again.register(url="http://127.0.0.1:9001")
    await again.store(9)
    await eventually(lambda: router.held(one.unit) == {9}, timeout_s=0.5)


async def test_goodbyes_on_their_word_are_bounded(fleet, eventually):
    """When all of ten leases go at once with a goodbye each, three leave; the others must fail their probes."""
    router, writers = fleet
    for one in writers:
        await one.retire()
    await eventually(lambda: len(router.fleet.replicas) == 7)
    assert router.value("warmroute_feed_losses_total") == 0


async def test_trust_that_is_told_is_there_at_once(fleet, writer, eventually, monkeypatch):
    """A new unit's lease, and a lease that becomes exact, are read as its lane speaks: no round is waited for."""
    monkeypatch.setattr(redis_feed, "ROUND_S", 60.0)
    router, (one, *_) = fleet
    await one.lease(url="http://127.0.0.1:9001", reason="the last round for a minute")
    await eventually(lambda: router.fleet.unit(one.unit).reason)
    told, heard = (writer(f"{name}/0", secret=SECRET.encode()) for name in ("told", "heard"))
    await told.register(url="http://127.0.0.1:9800", trust="approximate")
    await told.state("ready")
    await eventually(lambda: router.fleet.unit(told.unit), timeout_s=0.5)
    await told.store(2)
    await told.lease(url="http://127.0.0.1:9800")
    await told.state("ready")
    await eventually(lambda: router.held(told.unit) == {2}, timeout_s=0.5)
    await heard.register(url="http://127.0.0.1:9801")
    await heard.store(3)
    await eventually(lambda: router.held(heard.unit) == {3}, timeout_s=0.5)
