"""The writing side against a real Valkey that stalls, vanishes, comes back empty, or belongs to another agent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import redis as sync_redis

from replica.agent import redis_link
from replica.agent import sink as sink_module
from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.lane import Lane
from replica.agent.metrics import AgentMetrics
from replica.agent.proof import SchemeProof
from replica.agent.sink import UnitSink
from replica.agent.unit import UnitState
from router.kv import wire
from router.kv.engine_metrics import Load
from router.kv.keys import Keys
from router.kv.wire import BlocksBatch, Heartbeat, StateChange
from router.tools.local_valkey import start_valkey
from router.tools.processes import stop_all

UNIT = "r0/0"


class Writing:
    """A unit with its sink in operation."""

    def __init__(self, url: str, lease_s: float = 10.0, snapshot_s: float = 30.0) -> None:
        self.client = redis_link.connect(url)
        self.unit = UnitState(UNIT, VllmAdapter(), SchemeProof("none", 16, None), None)
        self.metrics = AgentMetrics()
        lane = Lane(self.client, Keys(), UNIT, lease_s, snapshot_s)
        self.read_until_s: float | None = None
        self.sink = UnitSink(
            self.unit,
            lane,
            lease_s,
            snapshot_s,
            redis_link.shown(url),
            self.metrics,
            read_until_s=lambda: self.read_until_s or time.monotonic(),
        )
        self.task = asyncio.create_task(self.sink.run())
        self._sequence = 0

    def feed(self, *events: Any, made_s: float | None = None) -> None:
        """Let the engine say something, now or at another Unix time."""
        payload = msgspec.msgpack.encode([made_s or time.time(), list(events), 0])
        self.sink.offer(self.unit.accept(self._sequence, payload), time.monotonic())
        self._sequence += 1

    def live(self) -> set[tuple[int, int, int]]:
        return {(h, tier, group) for tier, group, _, hashes in self.unit.layers() for h in hashes}

    async def ready(self) -> None:
        self.sink.register(lambda epoch: b"lease of %d" % epoch)
        async with asyncio.timeout(10):
            await self.sink.ready.wait()

    async def stop(self) -> None:
        self.sink.end()
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.sink.close(1.0)
        await self.client.close()


@pytest.fixture
async def write() -> AsyncIterator[Any]:
    """Start sinks; all are stopped after the test."""
    running: list[Writing] = []

    def start(url: str, **options: float) -> Writing:
        running.append(Writing(url, **options))
        return running[-1]

    yield start
    for one in running:
        await one.stop()


class OwnValkey:
    """A Valkey of one test alone, which it may stop and start again, empty, at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server, self.url = start_valkey(folder)

    def stop(self) -> None:
        stop_all([self._server])

    def start_again(self) -> None:
        self._server, self.url = start_valkey(self._folder, urlsplit(self.url).port)


@pytest.fixture
def own_valkey(monkeypatch, tmp_path) -> Iterator[OwnValkey]:  # type: ignore[no-untyped-def]
    """A Valkey of this test; what is slow in an outage is quick."""
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(sink_module, "MAX_BACKOFF_S", 0.1)
    server = OwnValkey(tmp_path)
    yield server
    server.stop()


async def test_ready_means_lease_and_snapshot_are_there(write, redis_url, mirror, events) -> None:  # type: ignore[no-untyped-def]
    """Blocks from before the registration are in the first snapshot, and the lease names its epoch."""
    one = write(redis_url)
    one.feed(events.stored([1, 2]))
    await one.ready()
    assert mirror.dump(UNIT) == {(1, 0, 0), (2, 0, 0)}
    assert mirror.client.get(mirror.keys.lease(UNIT)) == b"lease of %d" % one.sink.epoch


async def test_nothing_is_written_before_registration(write, redis_url, mirror, events) -> None:  # type: ignore[no-untyped-def]
    """An agent that has not found its engine leaves no trace."""
    one = write(redis_url)
    one.feed(events.stored([1]))
    one.sink.report_load(Load(1, 0, 0.5))
    await asyncio.sleep(0)
    await one.client.run("x", "PING")
    assert mirror.client.keys() == []


async def test_the_recorded_eviction_run_arrives_whole(write, redis_url, mirror, recordings, eventually) -> None:  # type: ignore[no-untyped-def]
    """Snapshot and stream give the recording's true 22 blocks, while snapshots are written in between."""
    one = write(redis_url, snapshot_s=0.1)
    await one.ready()
    for _, sequence, payload in recordings["eviction_int_block32"]:
        one.sink.offer(one.unit.accept(sequence, payload), time.monotonic())
        await asyncio.sleep(0.002)
    await eventually(lambda: mirror.dump(UNIT) == one.live())
    assert len(one.live()) == 22
    assert mirror.snapshot(UNIT).sequence > 0


async def test_changes_within_some_milliseconds_are_one_batch(write, redis_url, mirror, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Twenty frames at once are published as one batch."""
    one = write(redis_url)
    await one.ready()
    for block in range(20):
        one.feed(events.stored([block]))
    await eventually(lambda: mirror.dump(UNIT) == one.live())
    assert [len(m.changes[0].hashes) for m in mirror.messages(UNIT) if isinstance(m, BlocksBatch)] == [20]


async def test_a_heartbeat_tells_load_and_unknown_is_not_idle(write, redis_url, mirror, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """A known load is in the heartbeat, an unknown one is None; both carry the last batch's number."""
    one = write(redis_url)
    await one.ready()
    one.feed(events.stored([1]))
    one.sink.report_load(Load(3, 4, 0.5))
    await eventually(lambda: Heartbeat(UNIT, one.sink.epoch, 1, 3, 4, 0.5) in mirror.messages(UNIT))
    one.sink.report_load(None)
    await eventually(lambda: Heartbeat(UNIT, one.sink.epoch, 1, None, None, None) in mirror.messages(UNIT))


async def test_what_was_made_long_ago_is_told_so(write, redis_url, mirror, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """An agent that hung reads late what its engine announced: routers learn how old it is."""
    one = write(redis_url)
    await one.ready()
    one.feed(events.stored([1]), made_s=time.time() - 7)
    await eventually(lambda: any(isinstance(m, BlocksBatch) for m in mirror.messages(UNIT)))
    one.feed(events.stored([2]))
    await eventually(lambda: sum(isinstance(m, BlocksBatch) for m in mirror.messages(UNIT)) == 2)
    old, new = (m.behind_s for m in mirror.messages(UNIT) if isinstance(m, BlocksBatch))
    assert 7 <= old < 60
    assert new < old - 5


async def test_what_redis_took_late_bears_its_delay(write, redis_url, mirror, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """A link that stalls holds back what was written: its stamp is new, and it is not. The rest bears none."""
    one = write(redis_url)
    await one.ready()
    one.feed(events.stored([1]))
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0)})
    mirror.client.execute_command("CLIENT", "PAUSE", "400", "WRITE")
    one.feed(events.stored([2]))
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0), (2, 0, 0)})
    one.feed(events.stored([3]))
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0), (2, 0, 0), (3, 0, 0)})
    entries = [fields for _, fields in mirror.client.xrange(mirror.keys.stream_of(UNIT))]
    late = {
        message.changes[0].hashes[0]: int(fields.get(b"l", 0))
        for fields in entries
        if isinstance(message := wire.decode(fields[b"d"]), BlocksBatch)
    }
    assert 250 <= late[2] < 5_000
    assert (late[1], late[3]) == (0, 0)


async def test_a_heartbeat_tells_until_when_the_engine_was_read(write, redis_url, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """While a gap is asked for again, what comes waits in the socket: heartbeats do not speak for it."""
    one = write(redis_url)
    await one.ready()
    one.read_until_s = time.monotonic() - 9
    one.sink.report_load(Load(1, 0, 0.5))
    beats = lambda: [m for m in mirror.messages(UNIT) if isinstance(m, Heartbeat) and m.running == 1]  # noqa: E731
    await eventually(beats)
    assert 9 <= beats()[-1].behind_s < 60


async def test_a_new_epoch_drops_what_the_old_one_said(write, redis_url, mirror, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """After a restart of the engine, snapshot and stream hold the new life alone, under a higher epoch."""
    one = write(redis_url)
    await one.ready()
    one.feed(events.stored([1]))
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0)})
    epoch = one.sink.epoch
    one.unit.restart()
    one.sink.begin_epoch()
    one._sequence = 0
    one.feed(events.stored([2]))
    await eventually(lambda: mirror.dump(UNIT) == {(2, 0, 0)})
    assert one.sink.epoch > epoch
    assert mirror.snapshot(UNIT).epoch == one.sink.epoch


async def test_an_emptied_redis_gets_everything_again(write, redis_url, mirror, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """After FLUSHALL the next heartbeat finds out: lease, registry and a fresh snapshot are back."""
    one = write(redis_url)
    await one.ready()
    one.feed(events.stored([1]))
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0)})
    mirror.client.flushall()
    one.sink.report_load(None)
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0)})
    assert mirror.client.exists(mirror.keys.lease(UNIT), mirror.keys.registry) == 2


async def test_a_redis_that_is_away_stalls_nobody_and_gets_the_newest_state(  # type: ignore[no-untyped-def]
    write, own_valkey, monkeypatch, events, eventually
) -> None:
    """While Redis is stopped, more is read than may queue; when it is back, empty, it gets exactly the newest state."""
    monkeypatch.setattr(sink_module, "MAX_WAITING_BLOCKS", 100)
    one = write(own_valkey.url)
    await one.ready()
    own_valkey.stop()
    began_s = time.monotonic()
    for block in range(500):
        one.feed(events.stored([block]))
    one.feed(events.removed([7]))
    assert time.monotonic() - began_s < 1.0
    await eventually(lambda: not one.sink.healthy)
    own_valkey.start_again()
    with sync_redis.Redis.from_url(own_valkey.url) as client:
        await eventually(lambda: _dump(client) == one.live())
    assert len(one.live()) == 499


async def test_a_redis_that_blocks_stalls_nobody(write, own_valkey, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """A Redis that accepts and does not answer for some time: reading goes on, and all arrives afterwards, once."""
    one = write(own_valkey.url)
    await one.ready()
    with sync_redis.Redis.from_url(own_valkey.url) as client:
        client.execute_command("CLIENT", "PAUSE", "600", "WRITE")
        began_s = time.monotonic()
        for block in range(50):
            one.feed(events.stored([block]))
            await asyncio.sleep(0)
        assert time.monotonic() - began_s < 0.5
        await eventually(lambda: _dump(client) == one.live())


async def test_a_second_agent_takes_over_and_gives_back(write, redis_url, mirror, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Two pods bear one name: the newer one writes, the older stands by, and takes over when the newer one retires."""
    old = write(redis_url, lease_s=0.4)
    await old.ready()
    old.feed(events.stored([1]))
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0)})
    new = write(redis_url, lease_s=0.4)
    new.feed(events.stored([2]))
    await new.ready()
    old.feed(events.stored([3]))
    old.sink.report_load(None)
    await eventually(lambda: not old.sink.healthy)
    assert mirror.dump(UNIT) == {(2, 0, 0)}
    new.sink.register(None)
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0), (3, 0, 0)})
    assert old.sink.epoch > new.sink.epoch


async def test_an_engine_that_is_gone_takes_its_lease_along(write, redis_url, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """Without an engine there is no lease; with it back, there is one under a new epoch."""
    one = write(redis_url)
    await one.ready()
    epoch = one.sink.epoch
    one.sink.register(None)
    await eventually(lambda: not mirror.client.exists(mirror.keys.lease(UNIT)))
    assert mirror.messages(UNIT)[-1].state == "gone"
    one.sink.register(lambda epoch: b"back")
    await eventually(lambda: mirror.client.get(mirror.keys.lease(UNIT)) == b"back")
    assert one.sink.epoch > epoch


async def test_a_lease_is_renewed_in_time(write, redis_url, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """A lease of 0.4 s is there after 1.2 s, at every look."""
    one = write(redis_url, lease_s=0.4)
    await one.ready()
    looks = 0
    until_s = time.monotonic() + 1.2
    while time.monotonic() < until_s:
        assert mirror.client.exists(mirror.keys.lease(UNIT))
        looks += 1
        await asyncio.sleep(0.02)
    assert looks > 10


def _dump(client: Any) -> set[tuple[int, int, int]] | None:
    """Return what a plain reader holds, or None while Redis does not let it read."""
    keys = Keys()
    try:
        name = client.get(keys.snapshot_pointer(UNIT))
        if name is None:
            return None
        snapshot = wire.decode_chunks(client.lrange(keys.snapshot(UNIT, name.decode()), 0, -1))
        live = {(h, tier, group) for tier, group, _, hashes in snapshot.layers for h in hashes}
        for _, fields in client.xrange(keys.stream_of(UNIT), min=f"({snapshot.stream_id}"):
            batch = wire.decode(fields[b"d"])
            if isinstance(batch, wire.BlocksBatch) and batch.epoch == snapshot.epoch:
                for change in batch.changes:
                    live |= {(h, change.tier, change.group) for h in change.hashes}
        return live
    except sync_redis.RedisError:
        return None


async def test_an_engine_away_past_a_due_snapshot_costs_no_turn_of_the_loop(  # type: ignore[no-untyped-def]
    write, redis_url, mirror, events, eventually, monkeypatch
) -> None:
    """After traffic the engine is gone for longer than a snapshot interval: the sink waits, and registers again."""
    one = write(redis_url, lease_s=8.0, snapshot_s=0.1)
    await one.ready()
    one.feed(events.stored([1]))
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0)})
    one.feed(events.stored([2]))
    one.sink.register(None)
    await eventually(lambda: mirror.client.get(mirror.keys.lease(UNIT)) is None)
    steps = 0
    step = one.sink._step

    async def counted() -> None:
        nonlocal steps
        steps += 1
        if steps > 100:
            one.sink.end()  # else a failure would hang for ever
        await step()

    monkeypatch.setattr(one.sink, "_step", counted)
    one.sink.begin_epoch()  # wakes it once
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(one.task)
    assert steps <= 3
    one.sink.register(lambda epoch: b"lease of %d" % epoch)
    await eventually(lambda: mirror.client.get(mirror.keys.lease(UNIT)) is not None)
    await eventually(lambda: mirror.dump(UNIT) == {(1, 0, 0), (2, 0, 0)})


async def test_a_lease_that_says_something_new_is_announced_on_the_lane(  # type: ignore[no-untyped-def]
    write, redis_url, mirror, events, eventually
) -> None:
    """Registered again, the lease is written at once and its lane tells so, with the epoch; a renewal is not told."""
    one = write(redis_url, lease_s=0.4)
    await one.ready()

    def told() -> list[StateChange]:
        return [message for message in mirror.messages(UNIT) if isinstance(message, StateChange)]

    first = StateChange(UNIT, one.sink.epoch, "ready")
    assert told() == [first]
    one.sink.register(lambda epoch: b"another of %d" % epoch)
    await eventually(lambda: told() == [first, first])
    assert mirror.client.get(mirror.keys.lease(UNIT)) == b"another of %d" % one.sink.epoch
    beats = one.sink._lease_due_s
    await eventually(lambda: one.sink._lease_due_s > beats + 0.15)  # renewed twice
    assert told() == [first, first]
