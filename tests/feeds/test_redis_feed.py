"""The Redis feed against a real Valkey: lanes, snapshots, membership, loss and return."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from router.fleet.facts import Trust
from router.kv.wire import BlocksBatch, Change


async def test_blocks_published_on_a_lane_reach_the_index(redis_url, writer, run_feeds, eventually):
    """What an agent stores and removes is what the index holds for its unit, on its tiers."""
    r0, r1 = writer("r0/0"), writer("r1/0")
    await r0.register(url="http://127.0.0.1:9001")
    await r1.register(url="http://127.0.0.1:9002")
    router = run_feeds(redis=redis_url)
    await eventually(lambda: len(router.fleet.units) == 2)
    await r0.store(1, 2, 3)
    await r0.batch(Change("removed", 0, 0, 0, (2,)), Change("stored", 1, 0, 0, (2,)))
    await r1.store(9)
    await eventually(lambda: router.held("r1/0") == {9} and router.held("r0/0") == {1, 2, 3})
    assert router.index.dump(router.fleet.unit("r0/0").slot) == {(1, 0, 0), (3, 0, 0), (2, 1, 0)}


async def test_sliding_window_blocks_are_no_prefix(redis_url, writer, run_feeds, eventually):
    """A partial group's blocks (kind WINDOW) are not kept: they'd be matched as a prefix."""
    r0 = writer("r0/0")
    await r0.register()
    await r0.batch(Change("stored", 0, 1, 1, (5, 6)), Change("stored", 0, 0, 0, (7,)))
    router = run_feeds(redis=redis_url)
    await eventually(lambda: router.held("r0/0") == {7})


async def test_a_router_starts_from_the_snapshot_and_the_tail_after_it(redis_url, writer, run_feeds, eventually):
    """A new router knows blocks of before its start: snapshot (in several chunks), then later batches, once each."""
    r0 = writer("r0/0")
    await r0.register()
    at = await r0.store(*range(1000))
    await r0.snapshot(list(range(1000)), at, max_bytes=1024)
    await r0.batch(Change("removed", 0, 0, 0, range(500)))
    await r0.store(5000)
    router = run_feeds(redis=redis_url)
    await eventually(lambda: router.held("r0/0") == {*range(500, 1000), 5000})
    assert router.feeds.redis.ready.is_set() or await eventually(router.feeds.redis.ready.is_set)
    assert router.feeds.progress() == {"connected": True, "ready": True, "units": 1, "synced": 1}


async def test_a_gap_leads_to_the_snapshot(redis_url, writer, run_feeds, eventually):
    """A missing batch is noticed and the unit is read again from its snapshot; nothing of before stays."""
    r0 = writer("r0/0")
    await r0.register()
    router = run_feeds(redis=redis_url)
    await r0.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    at = await r0.store(4, skip=1)  # the lost batch removed 1 and 2 and stored 3
    await r0.snapshot([3, 4], at)
    await eventually(lambda: router.held("r0/0") == {3, 4})
    assert router.value("warmroute_feed_gaps_total") == 1
    assert router.value("warmroute_feed_resyncs_total", reason="gap") == 1


async def test_a_heartbeat_tells_of_a_lost_tail(redis_url, writer, run_feeds, eventually):
    """When the last batches were lost in a failover, the next heartbeat shows it."""
    r0 = writer("r0/0")
    await r0.register()
    router = run_feeds(redis=redis_url)
    await r0.store(1)
    await eventually(lambda: router.held("r0/0") == {1})
    r0.sequence += 1
    await r0.snapshot([1, 2], "0-0")
    await r0.heartbeat()
    await eventually(lambda: router.held("r0/0") == {1, 2})


async def test_batches_of_an_older_epoch_change_nothing(redis_url, writer, run_feeds, eventually):
    """An agent that lost its fence can't touch the index; the new epoch begins from nothing."""
    old, new = writer("r0/0", epoch=1), writer("r0/0", epoch=2)
    await old.register()
    router = run_feeds(redis=redis_url)
    await old.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    await new.register()
    await new.store(7)
    await eventually(lambda: router.held("r0/0") == {7})
    await old.store(3)
    await new.store(8)
    await eventually(lambda: router.held("r0/0") == {7, 8})


async def test_a_batch_sent_twice_is_applied_once(redis_url, writer, run_feeds, eventually):
    """A duplicate batch is ignored: a block that was removed since does not come back."""
    r0 = writer("r0/0")
    await r0.register()
    router = run_feeds(redis=redis_url)
    await r0.store(1, 2)
    await r0.batch(Change("removed", 0, 0, 0, (1,)))
    await r0.add(BlocksBatch("r0/0", 1, 1, (Change("stored", 0, 0, 0, (1, 2)),)))
    await r0.store(3)
    await eventually(lambda: router.held("r0/0") == {2, 3})
    assert router.value("warmroute_feed_gaps_total") == 0


async def test_a_unit_under_constant_load_is_joined(redis_url, writer, run_feeds, eventually):
    """A router that starts in the middle of traffic catches up without a gap that stays."""
    r0 = writer("r0/0")
    await r0.register()
    router = None
    at, held = "0-0", []
    for number in range(600):
        at = await r0.store(number)
        held.append(number)
        if number == 200:
            await r0.snapshot(held, at)
            router = run_feeds(redis=redis_url)
        if number % 50 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: router.held("r0/0") == set(range(600)))


async def test_two_routers_hold_the_same(redis_url, writer, run_feeds, eventually):
    """Each router has an index of its own, and both come to the same blocks; a later one as well."""
    r0 = writer("r0/0")
    await r0.register()
    first = run_feeds(redis=redis_url)
    await r0.store(*range(100))
    await eventually(lambda: len(first.held("r0/0")) == 100)
    second = run_feeds(redis=redis_url)
    await r0.batch(Change("removed", 0, 0, 0, range(50)))
    await eventually(lambda: first.held("r0/0") == second.held("r0/0") == set(range(50, 100)))


async def test_load_and_draining_are_applied_at_once(redis_url, writer, run_feeds, eventually):
    """Heartbeats carry load (unknown is no load at all); a draining replica takes nothing new at once."""
    r0 = writer("r0/0")
    await r0.register()
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    await r0.heartbeat(3, 4, 0.5)
    load = await eventually(lambda: router.fleet.unit("r0/0").load)
    assert (load.running, load.waiting, load.kv_usage) == (3, 4, 0.5)
    await r0.heartbeat(None, 4, 0.5)
    await eventually(lambda: router.fleet.unit("r0/0").load is None)
    await r0.state("draining")
    await eventually(lambda: router.fleet.replicas["r0"].draining, timeout_s=0.9)
    await r0.state("ready")
    await eventually(lambda: not router.fleet.replicas["r0"].draining, timeout_s=0.9)


async def test_goodbye_takes_a_replica_out_for_good(redis_url, writer, run_feeds, eventually):
    """`gone` withdraws a replica at once and frees its blocks, though its lease lingers; a new life is let in."""
    r0 = writer("r0/0")
    await r0.register()
    router = run_feeds(redis=redis_url)
    await r0.store(1)
    await eventually(lambda: router.held("r0/0") == {1})
    await r0.state("gone")
    await eventually(lambda: "r0" not in router.fleet.replicas)
    await writer("r1/0").register(url="http://127.0.0.1:10")
    await eventually(lambda: "r1" in router.fleet.replicas)  # a round of leases has passed
    assert "r0" not in router.fleet.replicas
    await writer("r0/0", epoch=2).register()
    await eventually(lambda: "r0" in router.fleet.replicas)


@pytest.mark.parametrize("secret", [None, b"another secret of 16"])
async def test_a_lease_without_the_right_signature_is_refused(redis_url, writer, run_feeds, eventually, caplog, secret):
    """With a secret set, an unsigned or wrongly signed lease brings no replica; it is said once and counted."""
    wrong, right = writer("bad/0", secret=secret), writer("good/0", secret=b"the secret of sixteen")
    await wrong.register(url="http://127.0.0.1:9001")
    await right.register(url="http://127.0.0.1:9002")
    router = run_feeds(redis=redis_url, registration={"secret": "the secret of sixteen"})
    await eventually(lambda: "good" in router.fleet.replicas)
    assert list(router.fleet.replicas) == ["good"]
    assert router.value("warmroute_feed_refused_leases_total", reason="signature") == 1
    assert "the secret of sixteen" not in caplog.text


async def test_a_lease_for_an_address_that_is_not_allowed_is_refused(redis_url, writer, run_feeds, eventually):
    """`registration.allow` keeps prompts inside: other addresses never join."""
    await writer("out/0").register(url="http://169.254.169.254")
    await writer("in/0").register(url="http://10.1.2.3:8000")
    await writer("named/0").register(url="http://pod-0.engines.svc:8000")
    router = run_feeds(redis=redis_url, registration={"allow": ["10.0.0.0/8", "*.engines.svc"]})
    await eventually(lambda: len(router.fleet.replicas) == 2)
    assert set(router.fleet.replicas) == {"in", "named"}


async def test_the_newest_life_of_a_name_holds(redis_url, writer, run_feeds, eventually):
    """Two pods may bear one replica's name during a rollout: requests go to the one that began last."""
    await writer("r0/0", epoch=5).register(url="http://127.0.0.1:9001")
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    await writer("r0/1", epoch=9).register(url="http://127.0.0.1:9002", rank=1)
    await eventually(lambda: router.fleet.replicas["r0"].port == 9002)
    assert [unit.unit_id for unit in router.fleet.replicas["r0"].units] == ["r0/1"]


async def test_units_of_one_replica_keep_their_own_block_size(redis_url, writer, run_feeds, eventually):
    """Each unit's scheme is its own (HASH-03): sizes are never assumed to be the router's."""
    await writer("r0/0").register(url="http://127.0.0.1:9001", block_size=64)
    await writer("r1/0").register(url="http://127.0.0.1:9002", block_size=16, seed="0", algorithm="xxhash")
    router = run_feeds(redis=redis_url)
    await eventually(lambda: len(router.fleet.units) == 2)
    r0, r1 = router.fleet.unit("r0/0"), router.fleet.unit("r1/0")
    assert (r0.scheme.block_size, r0.scheme.algorithm) == (64, "sha256_cbor")
    assert (r1.scheme.block_size, r1.scheme.algorithm, r1.scheme.seed) == (16, "xxhash", "0")


async def test_a_scheme_that_cannot_be_computed_lowers_trust(redis_url, writer, run_feeds, eventually):
    """xxhash without a seed has a random root: the unit is APPROXIMATE with its reason, not silently never hit."""
    await writer("r0/0").register(algorithm="xxhash")
    router = run_feeds(redis=redis_url)
    unit = await eventually(lambda: router.fleet.unit("r0/0"))
    assert unit.trust is Trust.APPROXIMATE
    assert unit.reason == "its hash scheme can't be computed"


async def test_redis_cut_and_black_holed_changes_nobody(
    redis_url, writer, run_feeds, relay, engines, eventually, caplog
):
    """RED-01: while Redis is cut or silent, membership and index stay; within 5 s of its return events are applied.

    The loss is logged once, however many tries follow.
    """
    caplog.set_level(logging.INFO, "warmroute")
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    router = run_feeds(redis=f"redis://127.0.0.1:{relay.port}/0", lease_s=0.5)
    await r0.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    relay.cut()
    await eventually(lambda: not router.feeds.redis.connected)
    asked = engine.health_asked
    await eventually(lambda: engine.health_asked >= asked + 2)
    relay.black_hole()
    await eventually(lambda: engine.health_asked >= asked + 4)
    await r0.store(3)
    assert router.fleet.unit("r0/0").trust is Trust.EXACT
    assert router.held("r0/0") == {1, 2}
    relay.restore()
    began_s = time.monotonic()
    await eventually(lambda: router.held("r0/0") == {1, 2, 3}, timeout_s=6)
    assert time.monotonic() - began_s < 5
    assert caplog.text.count("Redis is lost") == 1
    assert caplog.text.count("Redis is back") == 1
    assert router.value("warmroute_feed_losses_total") == 1


async def test_a_redis_that_goes_silent_is_noticed(redis_url, writer, run_feeds, relay, eventually):
    """A connection that stays open and says nothing is given up within seconds."""
    await writer("r0/0").register()
    router = run_feeds(redis=f"redis://127.0.0.1:{relay.port}/0")
    await eventually(router.feeds.reasons)
    await eventually(lambda: router.feeds.redis is not None and router.feeds.redis.connected)
    relay.black_hole()
    await eventually(lambda: not router.feeds.redis.connected, timeout_s=5)
    assert "r0" in router.fleet.replicas


async def test_a_dead_engine_leaves_rotation_while_redis_is_lost(
    redis_url, writer, run_feeds, relay, engines, eventually
):
    """Without Redis the router asks engines itself: two failed probes take one out, a good one brings it back."""
    good, bad = await engines(), await engines()
    await writer("good/0").register(url=good.url)
    await writer("bad/0").register(url=bad.url)
    router = run_feeds(redis=f"redis://127.0.0.1:{relay.port}/0")
    await eventually(lambda: len(router.fleet.replicas) == 2)
    bad.healthy = False
    relay.cut()
    await eventually(lambda: router.fleet.replicas["bad"].down_reason)
    assert router.fleet.replicas["good"].down_reason is None
    bad.healthy = True
    await eventually(lambda: router.fleet.replicas["bad"].down_reason is None)


async def test_an_emptied_redis_drops_nobody(redis, redis_url, writer, run_feeds, engines, eventually):
    """After FLUSHALL replicas and trust stay; agents register anew and go on, and their blocks follow."""
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    router = run_feeds(redis=redis_url, lease_s=0.6)
    await r0.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    await redis.flushall()
    # Two probes mean that two rounds of leases, over three lease times, found nothing.
    await eventually(lambda: engine.health_asked >= 1)
    assert router.fleet.unit("r0/0").trust is Trust.EXACT
    assert router.held("r0/0") == {1, 2}
    r0.epoch = 2
    r0.sequence = 0
    await r0.register(url=engine.url)
    await r0.store(4)
    await eventually(lambda: router.held("r0/0") == {4})


async def test_a_missing_agent_lowers_trust_and_no_more(redis_url, writer, run_feeds, engines, eventually):
    """A lease that runs out while its engine answers: APPROXIMATE with the reason; EXACT again with the agent."""
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    await writer("r1/0").register(url="http://127.0.0.1:9")
    router = run_feeds(redis=redis_url, lease_s=0.8)
    await r0.store(1)
    await eventually(lambda: router.held("r0/0") == {1})
    await r0.unregister()
    await eventually(lambda: router.fleet.unit("r0/0").trust is Trust.APPROXIMATE)
    await eventually(lambda: engine.health_asked >= 2)
    unit = router.fleet.unit("r0/0")
    assert unit.reason == "its agent is missing"
    assert unit.replica.down_reason is None
    await r0.register(url=engine.url)
    await eventually(lambda: router.fleet.unit("r0/0").trust is Trust.EXACT)
    await r0.store(2)
    await eventually(lambda: router.held("r0/0") == {1, 2})


async def test_a_dead_engine_without_lease_is_withdrawn(redis_url, writer, run_feeds, eventually):
    """Lease gone and probes failing: down within probes, and in bounded time its blocks are gone too (RED-06)."""
    r0 = writer("r0/0")
    await r0.register(url="http://127.0.0.1:9")
    await writer("r1/0").register(url="http://127.0.0.1:10")
    router = run_feeds(redis=redis_url, lease_s=0.8)
    await r0.store(*range(1000))
    await eventually(lambda: len(router.held("r0/0")) == 1000)
    slot = router.fleet.unit("r0/0").slot
    await r0.unregister()
    await eventually(lambda: "r0" not in router.fleet.replicas or router.fleet.replicas["r0"].down_reason)
    await eventually(lambda: "r0" not in router.fleet.replicas, timeout_s=15)
    assert router.index.blocks_of(slot) == 0
    assert "r1" in router.fleet.replicas


@pytest.mark.parametrize("form", ["http://127.0.0.1:{port}/", "http://localhost:{port}", "HTTP://127.0.0.1:{port}"])
async def test_an_agent_and_the_configuration_mean_one_replica(redis_url, writer, run_feeds, engines, eventually, form):
    """RED-05: another spelling of a configured address is that replica; the agent's facts hold while it is there."""
    engine = await engines()
    port = engine.url.rpartition(":")[2]
    router = run_feeds(redis=redis_url, replicas=[{"url": engine.url}])
    await eventually(lambda: f"127.0.0.1:{port}" in router.fleet.replicas)
    r0 = writer("r0/0")
    await r0.register(url=form.format(port=port))
    await r0.store(1)
    await eventually(lambda: router.held("r0/0") == {1})
    assert list(router.fleet.replicas) == ["r0"]
    await r0.state("gone")
    await eventually(lambda: list(router.fleet.replicas) == [f"127.0.0.1:{port}"])


async def test_rubbish_on_a_lane_stops_nothing(redis, redis_url, writer, run_feeds, eventually):
    """Entries that are no messages, of unknown kinds, or of unknown units are counted and skipped."""
    r0 = writer("r0/0")
    await r0.register()
    stream = r0.keys.stream_of("r0/0")
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    await redis.xadd(stream, {"d": b"\xff\x00rubbish"})
    await redis.xadd(stream, {"other": b"field"})
    await redis.xadd(stream, {"d": b"\x92\x01\x63"})  # [1, 99]: a kind of a later version
    await redis.xadd(stream, {"d": b""})
    await writer("stranger/0").store(1)
    await r0.store(2)
    await eventually(lambda: router.held("r0/0") == {2})
    assert router.value("warmroute_feed_messages_total", kind="broken") == 2
    await eventually(lambda: router.value("warmroute_feed_messages_total", kind="unregistered") == 1)


async def test_redis_down_at_the_start_is_said_once_without_its_password(run_feeds, eventually, caplog, unused_port):
    """AUT-02: the log names the trouble and never the password; readiness says that Redis was not reached."""
    router = run_feeds(redis=f"redis://:RP-333@127.0.0.1:{unused_port}/0")
    await eventually(lambda: "not reached" in caplog.text)
    await eventually(lambda: any("(" in reason for reason in router.feeds.reasons()))
    assert "RP-333" not in caplog.text + str(router.feeds.reasons())
    assert caplog.text.count("not reached") == 1


@pytest.fixture
def unused_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_feed_ends_whenever_it_is_cancelled(redis_url, writer, run_feeds):
    """Cancelling ends the feed at once, also in the middle of a command (the client's `wait_for` can swallow it)."""
    await writer("r0/0").register()
    for turns in range(40):
        router = run_feeds(redis=redis_url)
        async with asyncio.timeout(5):
            while not router.fleet.replicas:  # noqa: ASYNC110 - the turn of the loop is what is tested
                await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        router.task.cancel()
        done, _ = await asyncio.wait([router.task], timeout=2)
        assert done, f"still running after {turns} turns of the loop"
