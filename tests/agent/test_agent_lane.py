"""Each fenced step in a real Valkey: what it writes, and whom it refuses."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from replica.agent import redis_link
from replica.agent.lane import FencedError, Lane, LostError
from router.kv import wire
from router.kv.keys import Keys
from router.kv.wire import BlocksBatch, Change, Heartbeat, StateChange

UNIT = "r0/0"
STORED = (Change("stored", 0, 0, 0, [1, 2]),)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[redis_link.RedisClient]:
    """The agent's own client of an empty Valkey."""
    client = redis_link.connect(redis_url)
    yield client
    await client.close()


def lane(redis: redis_link.RedisClient, snapshot_s: float = 30.0) -> Lane:
    return Lane(redis, Keys(), UNIT, lease_s=10.0, snapshot_s=snapshot_s)


async def test_an_epoch_is_redis_time_and_always_grows(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """Epochs are microseconds of Redis' clock, and above the one before even if that is in the future."""
    one = lane(redis)
    await one.mint()
    seconds, micros = mirror.client.time()
    assert 0 <= seconds * 1_000_000 + micros - one.epoch < 10_000_000
    future = one.epoch + 10**12
    mirror.client.set(mirror.keys.epoch(UNIT), f"{future} 0")
    await one.mint()
    assert one.epoch == future + 1


async def test_published_batches_are_in_the_stream(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """Two batches and a heartbeat, numbered from 1."""
    one = lane(redis)
    await one.mint()
    beat = Heartbeat(UNIT, one.epoch, 2, 1, 0, 0.5)
    await one.publish([STORED, (Change("cleared"),)], [beat])
    assert mirror.messages(UNIT) == [
        BlocksBatch(UNIT, one.epoch, 1, STORED),
        BlocksBatch(UNIT, one.epoch, 2, (Change("cleared"),)),
        beat,
    ]


async def test_an_older_epoch_is_fenced(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """Once a second writer took the unit, the first can neither publish, renew, swap a snapshot nor retire."""
    old, new = lane(redis), lane(redis)
    await old.mint()
    await old.renew(b"old")
    await new.mint()
    await new.write_snapshot([(0, 0, 0, [7])], 0, new.stream_id)
    await new.renew(b"new")
    for step in (old.publish([STORED]), old.renew(b"old"), old.write_snapshot([], 0, "0-0"), old.retire()):
        with pytest.raises(FencedError):
            await step
    assert mirror.client.get(mirror.keys.lease(UNIT)) == b"new"
    assert mirror.messages(UNIT) == []
    assert mirror.dump(UNIT) == {(7, 0, 0)}


async def test_a_retry_after_an_unknown_outcome_is_written_once(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """The answer was lost, the write was not: publishing the same again changes nothing and goes on."""
    one = lane(redis)
    await one.mint()
    await one.publish([STORED])
    one.sequence = 0  # as if the answer had never come
    await one.publish([STORED])
    await one.publish([(Change("cleared"),)])
    assert [message.sequence for message in mirror.messages(UNIT)] == [1, 2]  # type: ignore[union-attr]


async def test_what_is_taken_after_its_writer_gave_it_up_bears_its_delay(redis, mirror, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A stalled connection delivers it in the end: batches and heartbeats alike say how long they were on the way."""
    one = lane(redis)
    await one.mint()
    made_s = time.monotonic()
    monkeypatch.setattr("replica.agent.lane.time.monotonic", lambda: made_s - 7.0)  # when it was made
    await one.publish([STORED], [Heartbeat(UNIT, one.epoch, 1)])
    late = [int(fields[b"l"]) for _, fields in mirror.client.xrange(mirror.keys.stream_of(UNIT))]
    assert len(late) == 2
    assert all(7_000 <= ms < 8_000 for ms in late)


async def test_on_another_servers_clock_one_batch_alone_may_seem_late(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """A new primary whose clock is an hour ahead: its first answer tells."""
    one = lane(redis)
    await one.mint()
    now_s = time.monotonic()
    one._clock.note(now_s, now_s, time.time() - 3_600.0)
    await one.publish([STORED])
    await one.publish([STORED])
    first, second = (fields.get(b"l") for _, fields in mirror.client.xrange(mirror.keys.stream_of(UNIT)))
    assert int(first) >= 3_599_000
    assert second is None


@pytest.mark.parametrize("what", ["emptied", "behind"])
async def test_a_redis_that_lost_our_writes_is_noticed(what: str, redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """Emptied, or failed over to a copy that lacks the last batch: publishing raises LostError and writes nothing."""
    one = lane(redis)
    await one.mint()
    fence = mirror.client.get(mirror.keys.epoch(UNIT))
    await one.publish([STORED])
    if what == "emptied":
        mirror.client.flushall()
    else:
        mirror.client.set(mirror.keys.epoch(UNIT), fence)
        mirror.client.delete(mirror.keys.stream_of(UNIT))
    with pytest.raises(LostError):
        await one.publish([STORED])
    assert mirror.messages(UNIT) == []


async def test_a_snapshot_replaces_the_one_before(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """A large snapshot comes in chunks of at most 128 KiB; after the swap the old one is gone and the new one whole."""
    one = lane(redis)
    await one.mint()
    await one.write_snapshot([(0, 0, 0, range(50_000))], 0, one.stream_id)
    first = mirror.client.get(mirror.keys.snapshot_pointer(UNIT)).decode()
    chunks = mirror.client.lrange(mirror.keys.snapshot(UNIT, first), 0, -1)
    assert len(chunks) > 1
    assert max(map(len, chunks)) <= 128 * 1024
    assert len(mirror.dump(UNIT)) == 50_000
    await one.write_snapshot([(1, 2, 1, [5])], 0, one.stream_id)
    assert mirror.client.exists(mirror.keys.snapshot(UNIT, first)) == 0
    assert mirror.snapshot(UNIT).layers[0][:3] == (1, 2, 1)


async def test_every_key_expires_without_its_agent(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """After a lease, a snapshot and a batch, no key of ours is without a time to live, and the lease's is its own."""
    one = lane(redis)
    await one.mint()
    await one.write_snapshot([(0, 0, 0, [1])], 0, one.stream_id)
    await one.publish([STORED])
    await one.renew(b"lease")
    await one.enrol()
    lives = {key: mirror.client.pttl(key) for key in mirror.client.keys("*")}
    assert len(lives) == 6
    assert all(life > 0 for life in lives.values()), lives
    assert 9_000 < lives[mirror.keys.lease(UNIT).encode()] <= 10_000


async def test_the_registry_is_scored_by_redis_time(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """A renewal enrols the unit at Redis' own seconds, and strikes off units that were silent for an hour."""
    one = lane(redis)
    now = mirror.client.time()[0]
    mirror.client.zadd(mirror.keys.registry, {"dead/0": now - 4000, "quiet/0": now - 60})
    await one.mint()
    await one.renew(b"lease")
    await one.enrol()
    units = dict(mirror.client.zrange(mirror.keys.registry, 0, -1, withscores=True))
    assert set(units) == {b"quiet/0", UNIT.encode()}
    assert abs(units[UNIT.encode()] - now) <= 5


async def test_the_stream_is_trimmed_by_age(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """Entries older than two snapshot intervals go; only whole nodes are cut, so a margin stays."""
    one = lane(redis, snapshot_s=0.1)
    await one.mint()
    stream = mirror.keys.stream_of(UNIT)
    old_ms = mirror.client.time()[0] * 1000 - 60_000
    for index in range(1000):
        mirror.client.xadd(stream, {"d": b"old"}, id=f"{old_ms}-{index}")
    await one.publish([STORED])
    assert mirror.client.xlen(stream) <= 101


async def test_retiring_says_gone_and_removes_the_lease(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """The last message of a unit is its state "gone"; lease and registry entry are away."""
    one = lane(redis)
    await one.mint()
    await one.renew(b"lease")
    await one.retire()
    assert mirror.messages(UNIT)[-1] == StateChange(UNIT, one.epoch, "gone")
    assert mirror.client.exists(mirror.keys.lease(UNIT), mirror.keys.registry) == 0


async def test_a_position_lets_a_reader_begin_there(redis, mirror) -> None:  # type: ignore[no-untyped-def]
    """Snapshot after batch 1, then batches 2 and 3: snapshot and stream give the whole state."""
    one = lane(redis)
    await one.mint()
    await one.publish([STORED])
    await one.write_snapshot([(0, 0, 0, [1, 2])], one.sequence, one.stream_id)
    await one.publish([(Change("removed", 0, 0, 0, [1]),), (Change("stored", 1, 0, 0, [9]),)])
    assert mirror.dump(UNIT) == {(2, 0, 0), (9, 1, 0)}
    assert wire.decode(mirror.client.xrevrange(mirror.keys.stream_of(UNIT), count=1)[0][1][b"d"]).sequence == 3  # type: ignore[union-attr]
