"""What a real server can do to agents and routers short of going away: each is named, outlived, and stalls nobody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis

from replica.agent import redis_link
from replica.agent import sink as sink_module
from router.kv.acl import agent_rules
from router.kv.client import faults
from router.kv.client.client import RedisClient

UNITS = ["r0/0", "r1/0"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents try again soon, and a machine that is slow is not taken for a Redis that hangs."""
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 10.0)
    monkeypatch.setattr(sink_module, "MAX_BACKOFF_S", 0.2)


@contextlib.contextmanager
def full(node: Any) -> Iterator[None]:
    """No room for anything more."""
    node.client.set("junk", b"x" * 16_000_000)
    node.client.config_set("maxmemory", 8_000_000)
    yield
    node.client.delete("junk")


@contextlib.contextmanager
def unsaved(node: Any) -> Iterator[None]:
    """Its disk takes nothing, and it is told to take no writes then."""
    shutil.rmtree(node.folder)
    node.client.config_set("save", "3600 1")
    node.client.bgsave()
    deadline = time.monotonic() + 30
    while node.client.info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield
    node.client.config_set("stop-writes-on-bgsave-error", "no")


@contextlib.contextmanager
def blocked(node: Any) -> Iterator[None]:
    """A script that does not end."""
    node.client.config_set("busy-reply-threshold", 20)

    def run() -> None:
        with redis.Redis(port=node.port, socket_timeout=60) as client, contextlib.suppress(redis.RedisError):
            client.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    while thread.is_alive():
        with contextlib.suppress(redis.RedisError):
            node.client.script_kill()
        thread.join(0.05)


@contextlib.contextmanager
def alone(node: Any) -> Iterator[None]:
    """Fewer replicas than it is told to have."""
    node.client.config_set("min-replicas-to-write", 1)
    yield
    node.client.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def forbidden(node: Any) -> Iterator[None]:
    """The user has lost a right."""
    node.client.execute_command("ACL", "SETUSER", "default", "-xadd")
    yield
    node.client.execute_command("ACL", "SETUSER", "default", "+@all")


@contextlib.contextmanager
def locked(node: Any) -> Iterator[None]:
    """A password is wanted now."""
    node.client.config_set("requirepass", "RP-333")
    node.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield
    node.client.config_set("requirepass", "")


@pytest.fixture
async def ticks() -> AsyncIterator[Callable[[], float]]:
    """The longest time in seconds for which the loop let nobody in, since it was last asked for."""
    longest_s, last_s = 0.0, time.monotonic()

    async def tick() -> None:
        nonlocal longest_s, last_s
        while True:
            longest_s = max(longest_s, time.monotonic() - last_s)
            last_s = time.monotonic()
            await asyncio.sleep(0.005)

    def take() -> float:
        nonlocal longest_s
        taken, longest_s = longest_s, 0.0
        return taken

    task = asyncio.create_task(tick())
    yield take
    task.cancel()


def told_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What agents said, each with its first word."""
    return [record.error for record in caplog.records if "does not take writes" in record.getMessage()]  # type: ignore[attr-defined]


async def agree(router: Any, writing: list[Any], eventually: Any, timeout_s: float = 40.0) -> None:
    """The router's index is what the agents hold."""
    await eventually(lambda: all(router.held(one.unit.unit_id) == one.live for one in writing), timeout_s)


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (full, "OOM"),
        (unsaved, "MISCONF"),
        (blocked, "BUSY"),
        (alone, "NOREPLICAS"),
        (forbidden, "NOPERM"),
        (locked, "NOAUTH"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_trouble_is_named_once_and_outlived(
    trouble: Any, kind: str, new_node: Any, agents: Any, run_feeds: Any, eventually: Any, caplog: Any
) -> None:
    """One line a unit names it and says what to do; nobody leaves; the newest state is there when it is over."""
    caplog.set_level(logging.INFO)
    node = new_node()
    url = f"redis://127.0.0.1:{node.port}/0"
    writing = await agents(url, UNITS, lease_s=5.0)
    for one in writing:
        one.store(1, 2)
    router = run_feeds(redis=url, lease_s=5.0)
    await agree(router, writing, eventually)
    with trouble(node):
        for one in writing:
            one.store(3)
        await eventually(lambda: len([line for line in told_of(caplog) if line.startswith(f"{kind}: ")]) >= 2, 20.0)
        for one in writing:
            one.remove(1)
        failures = sum(one.sink._failures for one in writing)
        await eventually(lambda: sum(one.sink._failures for one in writing) >= failures + 4, 20.0)
        assert all(";" in line for line in told_of(caplog))
        assert len([line for line in told_of(caplog) if line.startswith(f"{kind}: ")]) == 2
    await agree(router, writing, eventually)
    assert all(one.live == {2, 3} for one in writing)
    assert len(router.fleet.replicas) == len(UNITS)
    assert "RP-333" not in caplog.text


async def test_a_redis_that_our_own_blocks_fill_is_given_room(
    new_node: Any, agents: Any, run_feeds: Any, eventually: Any, caplog: Any
) -> None:
    """Blocks are stored until Redis is full, then all are removed: that goes through, and the index is empty."""
    node = new_node()
    url = f"redis://127.0.0.1:{node.port}/0"
    (writing,) = await agents(url, ["r0/0"])
    router = run_feeds(redis=url)
    writing.store(1)
    await agree(router, [writing], eventually)
    node.client.config_set("maxmemory", int(node.client.info("memory")["used_memory"]) + 1_500_000)
    stored = 10

    async def told_full() -> bool:
        nonlocal stored
        writing.store(*range(stored, stored + 5_000))
        stored += 5_000
        await asyncio.sleep(0)  # what is read goes on its way before more comes
        return any(line.startswith("OOM: ") for line in told_of(caplog))

    await eventually(told_full, 60.0)
    for start in range(0, stored, 5_000):
        writing.remove(*range(start, start + 5_000))
    await agree(router, [writing], eventually, 90.0)
    assert writing.live == set()
    await eventually(lambda: writing.sink.healthy, 90.0)
    writing.store(7)
    await agree(router, [writing], eventually, 90.0)


async def test_a_redis_that_hangs_stalls_nobody(
    new_node: Any, agents: Any, run_feeds: Any, eventually: Any, ticks: Callable[[], float], monkeypatch: Any
) -> None:
    """SIGSTOP while blocks come in: reading goes on, what waits is bounded, and the newest state wins afterwards."""
    monkeypatch.setattr(sink_module, "MAX_WAITING_BLOCKS", 1_000)
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 1.0)
    node = new_node()
    url = f"redis://127.0.0.1:{node.port}/0"
    writing = await agents(url, UNITS, lease_s=5.0)
    router = run_feeds(redis=url, lease_s=5.0)
    for one in writing:
        one.store(*range(500))
    await agree(router, writing, eventually)
    ticks()
    with node.hung():
        for number in range(1_000, 4_000, 10):
            for one in writing:
                one.store(*range(number, number + 10))
                assert one.sink._outbox.blocks <= 1_000
            await asyncio.sleep(0.005)
        for one in writing:
            one.remove(*range(500))
        await eventually(lambda: all(not one.sink.healthy for one in writing), 20.0)
        await eventually(lambda: not router.feeds.redis.connected, 20.0)
        assert ticks() < 5.0  # whoever waited for Redis itself would wait for ever
        assert len(router.fleet.replicas) == len(UNITS)
    await agree(router, writing, eventually)
    assert all(one.live == set(range(1_000, 4_000)) for one in writing)


async def test_a_redis_that_loads_is_waited_for(
    new_node: Any, agents: Any, run_feeds: Any, eventually: Any, caplog: Any
) -> None:
    """Started again with much to read from disk, it answers LOADING for a while: that is said, and then all goes on."""
    node = new_node(
        "--dbfilename", "kept.rdb", "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"
    )
    url = f"redis://127.0.0.1:{node.port}/0"
    writing = await agents(url, UNITS)
    router = run_feeds(redis=url)
    for one in writing:
        one.store(1, 2)
    await agree(router, writing, eventually)
    with node.client.pipeline(transaction=False) as pipeline:
        for number in range(3_000):
            pipeline.set(f"junk{number}", b"x" * 200)
        pipeline.execute()
    node.client.save()
    node.kill()
    await eventually(lambda: all(not one.sink.healthy for one in writing), 20.0)
    node.start_again()
    await eventually(lambda: any(line.startswith("LOADING: ") for line in told_of(caplog)), 30.0)
    for one in writing:
        one.store(3)
    await agree(router, writing, eventually)


async def test_an_emptied_redis_has_fresh_snapshots_within_5_s(
    new_node: Any, agents: Any, run_feeds: Any, eventually: Any
) -> None:
    """FLUSHALL: snapshot, lease and registry of every unit are back, and routers, who dropped nobody, agree."""
    node = new_node()
    url = f"redis://127.0.0.1:{node.port}/0"
    writing = await agents(url, UNITS)
    router = run_feeds(redis=url)
    for one in writing:
        one.store(1, 2)
    await agree(router, writing, eventually)
    epochs = [one.sink.epoch for one in writing]
    node.client.flushall()
    await eventually(lambda: all(one.sink.epoch > then for one, then in zip(writing, epochs, strict=True)), 5.0)
    await eventually(lambda: node.client.zcard("{wr}:units") == len(UNITS), 5.0)
    for one in writing:
        one.store(3)
    await agree(router, writing, eventually)
    assert len(router.fleet.replicas) == len(UNITS)


async def test_a_primary_that_moves_behind_one_address_is_found(
    new_node: Any, agents: Any, run_feeds: Any, relay: Any, eventually: Any
) -> None:
    """A service address: the server there becomes a replica (READONLY), then the address leads to the new primary."""
    former, new = new_node("--repl-diskless-sync-delay", "0"), new_node("--repl-diskless-sync-delay", "0")
    relay._target = ("127.0.0.1", former.port)
    url = f"redis://127.0.0.1:{relay.port}/0"
    writing = await agents(url, UNITS, lease_s=5.0)
    router = run_feeds(redis=url, lease_s=5.0)
    for one in writing:
        one.store(1)
    await agree(router, writing, eventually)
    former.client.execute_command("REPLICAOF", "127.0.0.1", new.port)
    for one in writing:
        one.store(2)
    await eventually(lambda: all(not one.sink.healthy for one in writing), 20.0)
    relay._target = ("127.0.0.1", new.port)  # as the address's next look-up would have it
    await agree(router, writing, eventually)
    assert len(router.fleet.replicas) == len(UNITS)
    assert new.client.zcard("{wr}:units") == len(UNITS)


async def test_what_a_dead_agent_left_ends_by_itself(new_node: Any, agents: Any, eventually: Any) -> None:
    """100,000 blocks of an agent that is killed are gone from Redis in bounded time; nothing scans for them."""
    node = new_node()
    (writing,) = await agents(f"redis://127.0.0.1:{node.port}/0", ["r9/0"], lease_s=0.5, snapshot_s=0.5)
    for start in range(0, 100_000, 5_000):
        writing.store(*range(start, start + 5_000))
        await asyncio.sleep(0.01)
    await eventually(lambda: node.client.info("memory")["used_memory_dataset"] > 800_000)
    writing.sink.end()
    writing.task.cancel()
    await asyncio.gather(writing.task, return_exceptions=True)
    for key in node.client.keys("*"):
        assert node.client.pttl(key) > 0, key
    await eventually(lambda: node.client.keys("*") == [b"{wr}:units"], 20.0)
    assert node.client.info("commandstats").keys().isdisjoint({"cmdstat_scan", "cmdstat_flushall"})


@pytest.mark.parametrize(
    ("rules", "command", "kind"),
    [
        (">RP-333 +@all ~*", "AUTH", "WRONGPASS"),
        (f">pass {agent_rules()}", "XADD other * a b", "NOPERM"),
    ],
)
async def test_refusals_are_named(new_node: Any, rules: str, command: str, kind: str) -> None:
    """What is refused, and where the remedy is, without the password."""
    node = new_node()
    node.client.execute_command("ACL", "SETUSER", "u", "reset", "on", *rules.split())
    client = RedisClient(f"redis://u:pass@127.0.0.1:{node.port}/0", 5.0)
    with pytest.raises(redis.RedisError) as caught:
        await client.run("x", *command.split())
    assert faults.kind_of(caught.value) == kind
    assert "RP-333" not in faults.told(caught.value)
    await client.close()
