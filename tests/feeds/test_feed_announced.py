"""What the Redis feed tells of announcements: each block that is stored, and when nothing follows from silence."""

from __future__ import annotations

import time

from router.kv.wire import BlocksBatch, Change, Heartbeat, encode


async def following(writer, router, eventually):
    """A unit that is followed and was heard; return its writer and a watch of blocks 7 and 8."""
    r0 = writer("r0/0")
    await r0.register()
    await eventually(lambda: router.value("warmroute_feed_units", state="synced") == 1)
    await r0.heartbeat()
    slot = router.fleet.unit("r0/0").slot
    return r0, slot, await eventually(lambda: router.feeds.announced.watch(slot, [7, 8]))


async def test_a_block_that_came_and_went_in_one_batch_was_announced(redis_url, writer, run_feeds, eventually):
    """It is in no index, and seen all the same."""
    router = run_feeds(redis=redis_url)
    r0, _, watch = await following(writer, router, eventually)
    await r0.batch(Change("stored", 0, 0, 0, (7, 9)), Change("removed", 0, 0, 0, (7,)))
    await eventually(lambda: router.held("r0/0") == {9})
    assert (watch.seen, watch.stored_blocks, watch.whole) == ({7}, 2, True)


async def test_each_heartbeat_says_that_what_came_before_is_read(redis_url, writer, run_feeds, eventually):
    """An idle unit is heard, too."""
    router = run_feeds(redis=redis_url)
    r0, _, watch = await following(writer, router, eventually)
    before_s = watch.heard_s

    async def heard_later() -> bool:
        await r0.heartbeat()  # again and again: Redis' times are milliseconds, and one may be that of before
        return watch.heard_s > before_s

    await eventually(heard_later)
    assert watch.stored_blocks == 0


async def test_what_comes_late_is_known_to_be_of_the_past(redis_url, writer, run_feeds, eventually):
    """An agent that was behind says so, in batches and in heartbeats."""
    router = run_feeds(redis=redis_url)
    r0, _, watch = await following(writer, router, eventually)
    at_s = time.monotonic()
    r0.sequence += 1
    await r0.add(BlocksBatch("r0/0", 1, r0.sequence, (Change("stored", 0, 0, 0, (9,)),), behind_s=60.0))

    async def heard_later() -> bool:
        await r0.add(Heartbeat("r0/0", 1, r0.sequence, behind_s=60.0))  # again and again, see above
        return watch.heard_s > at_s and router.held("r0/0") == {9}

    await eventually(heard_later)
    assert watch.batch_s < at_s - 30
    assert watch.read_s < at_s
    await r0.store(10)
    await eventually(lambda: watch.batch_s > at_s)


async def test_what_redis_took_late_is_known_to_be_of_the_past(redis, redis_url, writer, run_feeds, eventually):
    """It waited in a link that stalled: its entry is new and says so. What is no number says nothing."""
    router = run_feeds(redis=redis_url)
    r0, _, watch = await following(writer, router, eventually)
    at_s = time.monotonic()
    beats = router.value("warmroute_feed_messages_total", kind="heartbeat")
    stream = r0.keys.stream_of("r0/0")
    stored = BlocksBatch("r0/0", 1, r0.sequence + 1, (Change("stored", 0, 0, 0, (9,)),))
    await redis.xadd(stream, {"d": encode(stored), "l": "60000"})
    await redis.xadd(stream, {"d": encode(Heartbeat("r0/0", 1, r0.sequence + 1)), "l": "60000"})
    await eventually(lambda: router.value("warmroute_feed_messages_total", kind="heartbeat") > beats)
    assert router.held("r0/0") == {9}
    assert watch.batch_s < at_s - 30
    assert watch.read_s <= at_s
    again = BlocksBatch("r0/0", 1, r0.sequence + 2, (Change("stored", 0, 0, 0, (10,)),))
    await redis.xadd(stream, {"d": encode(again), "l": "-6e9"})
    await eventually(lambda: watch.batch_s > at_s - 30)


async def test_after_a_gap_nothing_follows_from_silence(redis_url, writer, run_feeds, eventually):
    """The lost batch may have held the block; what the snapshot brings is no announcement."""
    router = run_feeds(redis=redis_url)
    r0, slot, watch = await following(writer, router, eventually)
    at = await r0.store(9, skip=1)
    await r0.snapshot([7, 9], at)
    await eventually(lambda: router.held("r0/0") == {7, 9})
    assert (watch.whole, watch.seen) == (False, set())
    await r0.heartbeat()
    again = await eventually(lambda: router.feeds.announced.watch(slot, [8]))
    await r0.store(8)
    await eventually(lambda: again.seen == {8})


async def test_a_new_life_of_the_engine_is_an_interruption(redis_url, writer, run_feeds, eventually):
    """The old one's requests prove nothing any more."""
    router = run_feeds(redis=redis_url)
    _, _, watch = await following(writer, router, eventually)
    again = writer("r0/0", epoch=2)
    await again.register()
    await again.store(9)
    await eventually(lambda: router.held("r0/0") == {9})
    assert not watch.whole


async def test_a_unit_that_is_followed_no_more_is_an_interruption(redis_url, writer, run_feeds, eventually):
    """Its agent says that the scheme is not proven: its blocks are not read."""
    router = run_feeds(redis=redis_url)
    r0, _, watch = await following(writer, router, eventually)
    await r0.lease(trust="approximate")
    await eventually(lambda: not watch.whole)
