"""The Redis feed against a real Valkey: lanes and snapshots reach the index, whole and in order."""

from __future__ import annotations

import asyncio

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
    """A partial group's blocks (kind WINDOW) are kept apart: alone they match nothing."""
    r0 = writer("r0/0")
    await r0.register()
    await r0.batch(Change("stored", 0, 1, 1, (5, 6)), Change("stored", 0, 0, 0, (7,)))
    router = run_feeds(redis=redis_url)
    await eventually(lambda: router.held("r0/0") == {5, 6, 7})
    slot = router.fleet.unit("r0/0").slot
    assert (router.index.leading(slot, [5, 6]), router.index.leading(slot, [7, 5, 6])) == (0, 1)


async def test_a_prefix_ends_where_a_sliding_window_still_holds_its_end(redis_url, writer, run_feeds, eventually):
    """A lease tells that group 1 must hold the last 24 tokens: of snapshot and batches, until they are evicted."""
    r0 = writer("r0/0")
    await r0.register(block_size=16, group_tails={1: (24, 16), 2: (24, 24)})
    await r0.batch(Change("stored", 0, 0, 0, (1, 2, 3, 4, 5)), Change("stored", 0, 1, 1, (2, 3, 5)))
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    unit = router.fleet.unit("r0/0")
    await eventually(lambda: len(router.index.dump(unit.slot)) == 8)
    assert unit.tails == ((1, 1, 2),)
    assert router.index.leading(unit.slot, [1, 2, 3, 4, 5]) == 3
    await r0.batch(Change("removed", 0, 1, 1, (2,)))
    await eventually(lambda: router.index.leading(unit.slot, [1, 2, 3, 4, 5]) == 0)
    await r0.batch(Change("stored", 0, 1, 1, (4,)))
    await eventually(lambda: router.index.leading(unit.slot, [1, 2, 3, 4, 5]) == 5)


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
    await eventually(lambda: router.value("warmroute_feed_units", state="synced") == 1)
    assert router.value("warmroute_feed_units", state="waiting") == 0


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
    await eventually(lambda: router.value("warmroute_feed_resyncs_total", reason="gap") == 1)


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
    voided = []
    router.fleet._on_cache_voided = voided.append
    await new.register()
    await new.store(7)
    await eventually(lambda: router.held("r0/0") == {7})
    assert [unit.unit_id for unit in voided] == ["r0/0"]  # so what was sent there is forgotten, too
    await old.store(3)
    await new.store(8)
    await eventually(lambda: router.held("r0/0") == {7, 8})


async def test_a_new_life_that_is_not_proven_yet_voids_the_blocks(redis_url, writer, run_feeds, eventually):
    """An engine restarts: its lease is of a new epoch and no longer exact. What it held before is held by nobody."""
    old, new = writer("r0/0", epoch=1), writer("r0/0", epoch=2)
    await old.register()
    router = run_feeds(redis=redis_url)
    await old.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    await new.register(trust="approximate")
    await new.state("ready")
    await eventually(lambda: router.held("r0/0") == set())
    assert router.fleet.unit("r0/0").trust is Trust.APPROXIMATE


async def test_a_missing_agents_blocks_are_void_when_its_engine_begins_a_new_life(
    redis_url, writer, run_feeds, eventually, engines
):
    """While an agent is missing its blocks stay as advice; when it is back with another, unproven life, they go."""
    old, new = writer("r0/0", epoch=1), writer("r0/0", epoch=2)
    engine = await engines()
    await old.register(url=engine.url)
    router = run_feeds(redis=redis_url, lease_s=0.2)
    await old.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    await old.unregister()
    await eventually(lambda: router.fleet.unit("r0/0").trust is Trust.APPROXIMATE)
    assert router.held("r0/0") == {1, 2}
    await new.register(trust="approximate", url=engine.url)
    await new.state("ready")
    await eventually(lambda: router.held("r0/0") == set())


async def test_an_epoch_that_begins_with_blocks_is_waited_for(redis_url, writer, run_feeds, eventually):
    """An agent that voids what it published begins a new epoch with a snapshot: nothing of it is taken for empty."""
    old, new = writer("r0/0", epoch=1), writer("r0/0", epoch=2)
    await old.register()
    await old.store(1, 2)
    router = run_feeds(redis=redis_url)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    await new.lease()
    await new.heartbeat()  # the new epoch is heard of before its snapshot is there
    await eventually(lambda: router.held("r0/0") == set())
    await new.snapshot([2, 3])
    await new.store(4)
    await eventually(lambda: router.held("r0/0") == {2, 3, 4})


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
    """Heartbeats carry load (unknown is no load at all); a lease that says draining is taken at its lane's word."""
    r0 = writer("r0/0")
    await r0.register()
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    await r0.heartbeat(3, 4, 0.5)
    load = await eventually(lambda: router.fleet.unit("r0/0").load)
    assert (load.running, load.waiting, load.kv_usage) == (3, 4, 0.5)
    await r0.heartbeat(None, 4, 0.5)
    await eventually(lambda: router.fleet.unit("r0/0").load is None)
    await r0.lease(state="draining")
    await r0.state("draining")
    await eventually(lambda: router.fleet.replicas["r0"].draining, timeout_s=0.9)
    await r0.lease(state="ready")
    await r0.state("ready")
    await eventually(lambda: not router.fleet.replicas["r0"].draining, timeout_s=0.9)


async def test_units_of_one_replica_keep_their_own_block_size(redis_url, writer, run_feeds, eventually):
    """Each unit's scheme is its own: sizes are never assumed to be the router's."""
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


async def test_cache_groups_of_several_block_sizes_are_matched_by_their_hash_unit(
    redis_url, writer, run_feeds, eventually
):
    """A lease tells that group 1 has blocks of twice the unit: what it holds ends every second block of the chain."""
    agent = writer("r0/0", epoch=1)
    await agent.register(block_size=16, group_sizes={1: 32, 2: 40}, whole=True)
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    unit = router.fleet.unit("r0/0")
    assert (unit.strides, unit.whole, unit.scheme.block_size) == (((1, 2),), True, 16)
    await agent.store(1, 2, 3, 4, 5)
    await agent.store(2, 4, group=1)
    await eventually(lambda: len(router.index.dump(unit.slot)) == 7)
    assert router.index.match([1, 2, 3, 4, 5], [unit.slot])[unit.slot].blocks == 4
