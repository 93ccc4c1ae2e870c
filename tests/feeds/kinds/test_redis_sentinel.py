"""Agents and routers behind real Sentinels: failover on purpose and by death, and Sentinels that hang or are gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from router.kv.acl import agent_rules, router_rules
from router.kv.client.client import RedisClient

UNITS = ["r0/0", "r1/0", "r2/0", "r3/0"]


class Service:
    """A primary, a replica of it, and a Sentinel that watches them, with users of its own."""

    def __init__(self, new_node: Callable[..., Any], folder: Path) -> None:
        self.nodes = [new_node("--repl-diskless-sync-delay", "0", folder=folder / name) for name in ("n0", "n1")]
        for node in self.nodes:
            for user, rules in (("agent", agent_rules()), ("router", router_rules())):
                node.client.execute_command("ACL", "SETUSER", user, "reset", "on", ">secret", *rules.split())
        self.nodes[1].client.execute_command("REPLICAOF", "127.0.0.1", self.nodes[0].port)
        file = folder / "sentinel.conf"
        file.write_text(
            f"sentinel monitor mine 127.0.0.1 {self.nodes[0].port} 1\n"
            "sentinel down-after-milliseconds mine 500\n"
            "sentinel failover-timeout mine 3000\n"
        )
        self.sentinel = new_node("--sentinel", file=file, folder=folder / "s0")
        rules = "-@all +auth +hello +ping +client|setinfo +sentinel|master"
        self.sentinel.client.execute_command("ACL", "SETUSER", "watcher", "reset", "on", ">other", *rules.split())

    @property
    def is_whole(self) -> bool:
        """Whether the replica is in step, and the Sentinel knows of it."""
        answer = self.sentinel.client.execute_command("SENTINEL", "REPLICAS", "mine")
        lines = self.nodes[1].lines("INFO replication")
        return bool(answer) and lines.get("master_link_status") == "up"

    def primary(self) -> Any:
        """The node that the Sentinel names."""
        _, port = self.sentinel.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mine")
        return next(node for node in self.nodes if node.port == int(port))

    def url(self, user: str = "", *others: int) -> str:
        """Of the Sentinel, after others that are of no use."""
        sentinels = ",".join(f"127.0.0.1:{port}" for port in (*others, self.sentinel.port))
        login = f"{user}:secret@" if user else ""
        return f"redis+sentinel://{login}{sentinels}/mine?sentinel_username=watcher&sentinel_password=other"


@pytest.fixture
async def service(new_node: Callable[..., Any], tmp_path: Path, eventually: Any) -> Service:
    """A service that may fail over."""
    one = Service(new_node, tmp_path)
    await eventually(lambda: one.is_whole, 60.0)
    return one


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Where connections are accepted and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def agree(router: Any, writing: list[Any], eventually: Any) -> None:
    """The router's index is what the agents hold."""
    await eventually(lambda: all(router.held(one.unit.unit_id) == one.live for one in writing), 60.0)


@pytest.mark.parametrize("how", ["on purpose", "by death"])
async def test_a_failover_loses_nobody(
    how: str, service: Service, agents: Any, run_feeds: Any, eventually: Any, silent_port: int, unused_port: int
) -> None:
    """Both find the new primary by themselves, with rights as documented, and with one Sentinel hung and one gone.

    Nobody leaves, trust stays, what was lost is written again, and news goes on.
    """
    writing = await agents(service.url("agent", silent_port, unused_port), UNITS, lease_s=5.0)
    router = run_feeds(redis=service.url("router", silent_port, unused_port), lease_s=5.0)
    for number, one in enumerate(writing):
        one.store(number)
    await agree(router, writing, eventually)
    former = service.primary()
    if how == "by death":
        former.kill()
    else:
        service.sentinel.client.execute_command("SENTINEL", "FAILOVER", "mine")
    for number, one in enumerate(writing):
        one.store(number + 100)
    await eventually(lambda: service.primary() is not former, 90.0)
    for number, one in enumerate(writing):
        one.store(number + 200)
    await agree(router, writing, eventually)
    assert len(router.fleet.replicas) == len(UNITS)
    assert all(unit.trust == "exact" for unit in router.fleet.units.values())


async def test_what_a_new_primary_lost_is_written_again(
    service: Service, agents: Any, run_feeds: Any, eventually: Any
) -> None:
    """The replica stopped copying before the last batches: promoted, it gets a fresh snapshot of every unit."""
    writing = await agents(service.url(), UNITS)
    router = run_feeds(redis=service.url())
    for number, one in enumerate(writing):
        one.store(number)
    await agree(router, writing, eventually)
    epochs = [one.sink.epoch for one in writing]
    primary, replica = service.nodes
    await eventually(lambda: _offset(primary) == _offset(replica), 30.0)
    replica.client.execute_command("REPLICAOF", "NO", "ONE")  # from here on it misses what is written
    for number, one in enumerate(writing):
        one.store(number + 100)
    await agree(router, writing, eventually)
    service.sentinel.client.execute_command("SENTINEL", "REMOVE", "mine")
    service.sentinel.client.execute_command("SENTINEL", "MONITOR", "mine", "127.0.0.1", replica.port, 1)
    primary.kill()
    await eventually(lambda: all(one.sink.epoch > epoch for one, epoch in zip(writing, epochs, strict=True)), 60.0)
    await agree(router, writing, eventually)
    assert len(router.fleet.replicas) == len(UNITS)


async def test_a_primary_that_still_answers_is_left_when_sentinels_name_another(
    service: Service, eventually: Any
) -> None:
    """Cut off together with a former primary, a client would talk to it for ever: Sentinels are asked now and then."""
    client = RedisClient(service.url(), 5.0)
    assert await client.run("x", "SET", "x", "1")
    primary, replica = service.nodes
    replica.client.execute_command("REPLICAOF", "NO", "ONE")
    service.sentinel.client.execute_command("SENTINEL", "REMOVE", "mine")
    service.sentinel.client.execute_command("SENTINEL", "MONITOR", "mine", "127.0.0.1", replica.port, 1)

    async def is_there() -> bool:
        try:
            return bool(await client.run("y", "SET", "y", "1")) and bool(replica.client.exists("y"))
        except redis.RedisError:
            return False

    await eventually(is_there, 30.0)
    assert primary.client.ping()
    await client.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("/mine?", "/other?"), "know no primary of this name"),
        (("watcher&sentinel_password=other", "watcher&sentinel_password=wrong"), "no Sentinel names the primary"),
        (("redis+sentinel://", "redis://"), "redis+sentinel://HOST:PORT/SERVICE"),
    ],
)
async def test_a_wrong_service_or_password_is_named(service: Service, change: tuple[str, str], told: str) -> None:
    """What an operator got wrong is in one line, without the password."""
    from router.kv.client import faults

    url = service.url().replace(*change)
    if url.startswith("redis://"):
        url = f"redis://127.0.0.1:{service.sentinel.port}"
    client = RedisClient(url, 5.0)
    with pytest.raises(redis.RedisError) as caught:
        await client.run("x", "GET", "x")
    text = faults.told(caught.value)
    assert told in text
    assert "\n" not in text
    assert "wrong" not in text.lower().replace("wrongpass", "")
    await client.close()
    await asyncio.sleep(0)


def _offset(node: Any) -> str:
    lines = node.lines("INFO replication")
    return str(lines.get("slave_repl_offset", lines["master_repl_offset"]))
