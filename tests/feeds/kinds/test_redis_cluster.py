"""Agents and routers on a real Cluster: slots on several nodes, resharding, failover, and a node that is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from replica.agent import redis_link as agent_link
from router.feeds import redis_link
from router.kv.acl import agent_rules, router_rules
from router.kv.client.client import RedisClient
from router.kv.keys import Keys, lane_of
from router.kv.redis_slots import SLOTS, slot_of

UNITS = [f"r{number}/0" for number in range(12)]
OPTIONS = (
    "--cluster-enabled",
    "yes",
    "--cluster-require-full-coverage",
    "no",
    "--cluster-node-timeout",
    "30000",
    "--repl-diskless-sync-delay",
    "0",
)
PARTS = 3
DEAD_MS = 1_500
"""Who is silent for so long is taken for dead where a test kills a node; elsewhere nobody is, however slow it is."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slow is not taken for a Redis that hangs."""
    monkeypatch.setattr(agent_link, "TIMEOUT_S", 10.0)
    monkeypatch.setattr(redis_link, "COMMAND_TIMEOUT_S", 10.0)


class Cluster:
    """Three primaries, and a replica of the first."""

    def __init__(self, node: Callable[..., Any], folder: Path) -> None:
        self.nodes = [node(folder / f"c{number}", *OPTIONS) for number in range(PARTS + 1)]
        for number, node in enumerate(self.nodes[:PARTS]):
            first, last = number * SLOTS // PARTS, (number + 1) * SLOTS // PARTS - 1
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        self.until(lambda: all(self.known(node) == len(self.nodes) for node in self.nodes))
        self.until(lambda: all(self.state(node) == "ok" for node in self.nodes))
        self.nodes[PARTS].client.execute_command("CLUSTER", "REPLICATE", self.id_of(self.nodes[0]))
        self.until(lambda: self.nodes[PARTS].lines("INFO replication").get("master_link_status") == "up")

    @property
    def primaries(self) -> list[Any]:
        """Nodes that serve slots now."""
        return [node for node in self.nodes if self.is_primary(node)]

    @property
    def spare(self) -> Any:
        """The replica."""
        return next(node for node in self.nodes if not self.is_primary(node))

    def empty(self) -> None:
        """Forget what a test left."""
        for node in self.primaries:
            node.client.flushall()

    @property
    def url(self) -> str:
        """Of two of its nodes."""
        return f"redis+cluster://127.0.0.1:{self.nodes[1].port},127.0.0.1:{self.nodes[0].port}"

    def state(self, node: Any) -> str:
        return _info(node)["cluster_state"]

    def known(self, node: Any) -> int:
        return int(_info(node)["cluster_known_nodes"])

    def id_of(self, node: Any) -> str:
        return str(node.client.execute_command("CLUSTER", "MYID").decode())

    def primary_of(self, replica: Any) -> Any:
        """The node that a replica copies."""
        port = int(replica.lines("INFO replication")["master_port"])
        return next(node for node in self.nodes if node.port == port)

    def is_primary(self, node: Any) -> bool:
        return node.lines("INFO replication")["role"] == "master"

    def owner(self, key: str) -> Any:
        """The node that has a key's slot."""
        for first, last, (_, port, *_), *_ in self.nodes[PARTS].client.execute_command("CLUSTER", "SLOTS"):
            if first <= slot_of(key) <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError("no node has the slot")

    @contextlib.contextmanager
    def dying(self) -> Iterator[None]:
        """Miss a node soon."""
        self._timeout(DEAD_MS)
        yield
        self._timeout(30_000)

    def _timeout(self, ms: int) -> None:
        for node in self.nodes:
            with contextlib.suppress(redis.RedisError):
                node.client.config_set("cluster-node-timeout", ms)

    def fail_over(self) -> None:
        """Ask the replica to take over, as an operator does: it gives up after 5 s where the primary is slow."""
        if self.spare.lines("INFO replication").get("master_link_status") == "up":
            with contextlib.suppress(redis.ResponseError):
                self.spare.client.execute_command("CLUSTER", "FAILOVER")

    def come_back(self) -> None:
        """Wait until the Cluster is whole, after a node was started again."""
        self.until(lambda: all(self.state(one) == "ok" for one in self.nodes))
        self.until(lambda: self.spare.lines("INFO replication").get("master_link_status") == "up")

    def until(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except redis.RedisError:
                pass
            assert time.monotonic() < deadline, "the Cluster does not come up"
            time.sleep(0.02)

    def move(self, slot: int, source: Any, target: Any, *, between: Callable[[], Any] = lambda: None) -> None:
        """Move a slot with all its keys, as resharding does; `between` runs while keys are on both sides."""
        source_id, target_id = self.id_of(source), self.id_of(target)
        target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        keys = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        for place, key in enumerate(keys):
            if place == len(keys) // 2:
                between()
            source.client.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 10_000)
        between()
        for node in (target, source, *self.primaries):
            node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def _info(node: Any) -> dict[str, str]:
    answer = node.client.execute_command("CLUSTER", "INFO")
    if isinstance(answer, dict):
        return {str(name): str(value) for name, value in answer.items()}
    return dict(line.split(":", 1) for line in answer.decode().split())


@pytest.fixture(scope="module")
def one_cluster(node_class: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Cluster for all tests here: it takes seconds to come up."""
    made: list[Any] = []

    def start(folder: Path, *options: str) -> Any:
        made.append(node_class(folder, *options))
        return made[-1]

    try:
        yield Cluster(start, tmp_path_factory.mktemp("cluster"))
    finally:
        for node in made:
            node.kill()


@pytest.fixture
def cluster(one_cluster: Cluster) -> Cluster:
    """The Cluster, empty."""
    one_cluster.empty()
    return one_cluster


def lanes_are_spread(cluster: Cluster) -> bool:
    return {cluster.owner(Keys().stream_of(unit)).port for unit in UNITS} == {node.port for node in cluster.primaries}


async def agree(router: Any, writing: list[Any], eventually: Any, timeout_s: float = 40.0) -> None:
    """The router's index is what the agents hold."""
    await eventually(lambda: all(router.held(one.unit.unit_id) == one.live for one in writing), timeout_s)


async def test_lanes_on_all_nodes_are_followed_without_crossslot(
    cluster: Cluster, agents: Any, run_feeds: Any, eventually: Any
) -> None:
    """Twelve units over three nodes: registered, followed from snapshot and stream, removed; by users of our rules."""
    assert lanes_are_spread(cluster)
    for node in cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", "agent", "reset", "on", ">secret", *agent_rules().split())
        node.client.execute_command("ACL", "SETUSER", "router", "reset", "on", ">secret", *router_rules().split())
    writing = await agents(cluster.url.replace("://", "://agent:secret@"), UNITS)
    for number, one in enumerate(writing):
        one.store(*range(number * 100, number * 100 + 40))
    router = run_feeds(redis=cluster.url.replace("://", "://router:secret@"))
    await agree(router, writing, eventually)
    for one in writing:
        one.remove(*sorted(one.live)[:20])
        one.store(7)
    await agree(router, writing, eventually)
    await writing[0].stop()
    await eventually(lambda: "r0" not in router.fleet.replicas)
    assert router.value("warmroute_feed_losses_total") == 0


async def test_a_plain_url_of_a_node_is_a_cluster(
    cluster: Cluster, agents: Any, run_feeds: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """redis://HOST that leads to a Cluster is followed to its nodes, and said so."""
    caplog.set_level("INFO")
    url = f"redis://127.0.0.1:{cluster.nodes[1].port}/0"
    writing = await agents(url, UNITS[:6])
    for number, one in enumerate(writing):
        one.store(number)
    await agree(run_feeds(redis=url), writing, eventually)
    assert "is a Cluster" in caplog.text


async def test_nodes_without_lanes_are_told_of(
    cluster: Cluster, run_feeds: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With few lanes some nodes do nothing: said once, with a number that helps. The default reaches all."""
    few = run_feeds(redis={"url": cluster.url, "lanes": 2})
    await eventually(lambda: few.value("warmroute_feed_up", feed="redis") == 1)
    assert "2 lanes lie on 2 of the Cluster's 3 nodes: 16 reach more" in caplog.text
    caplog.clear()
    enough = run_feeds(redis=cluster.url)
    await eventually(lambda: enough.value("warmroute_feed_up", feed="redis") == 1)
    assert "reach more" not in caplog.text


async def test_a_slot_that_moves_loses_nothing(cluster: Cluster, agents: Any, run_feeds: Any, eventually: Any) -> None:
    """A lane's slot moves to another node while its units write: redirections are followed, and all arrives once."""
    lane = lane_of(UNITS[0])
    writing = await agents(cluster.url, [unit for unit in UNITS if lane_of(unit) == lane])
    router = run_feeds(redis=cluster.url)
    writing[0].store(*range(100))
    await agree(router, writing, eventually)
    stream = Keys().stream(lane)
    source = cluster.owner(stream)
    target = next(node for node in cluster.primaries if node is not source)
    written, going_on = 1000, True

    async def write() -> None:
        nonlocal written
        while going_on:
            writing[0].store(written)
            written += 1
            await asyncio.sleep(0.002)

    async def more() -> None:
        """Some blocks are written from here on."""
        enough = written + 100
        await eventually(lambda: written >= enough)

    def while_half_moved() -> None:
        asyncio.run_coroutine_threadsafe(more(), loop).result(60)

    loop = asyncio.get_running_loop()
    task = asyncio.create_task(write())
    await asyncio.to_thread(cluster.move, slot_of(stream), source, target, between=while_half_moved)
    moved = written
    await eventually(lambda: moved in router.held(UNITS[0]), what="what is written after the move arrives")
    going_on = False
    await task
    await agree(router, writing, eventually)
    assert target.client.exists(stream)
    assert "r0" in router.fleet.replicas


async def test_a_redirection_by_ask_is_followed_on_its_own_connection(cluster: Cluster) -> None:
    """While a slot moves, keys that are gone from its old node are read and written at the new one; many at once."""
    client = RedisClient(cluster.url, 5.0)
    keys = [f"{{wr:3}}:{number}" for number in range(20)]
    await client.run(keys[0], "SET", keys[0], "x")
    source = cluster.owner(keys[0])
    target = next(node for node in cluster.primaries if node is not source)
    slot = slot_of(keys[0])
    target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    await asyncio.gather(*(client.run(key, "SET", key, key) for key in keys[1:]))
    assert await client.each([(key, ("GET", key)) for key in keys]) == [b"x", *(key.encode() for key in keys[1:])]
    assert source.client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
    await client.close()
    cluster.empty()
    for node in (source, target):
        node.client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


async def test_a_failover_on_purpose_loses_nobody(
    cluster: Cluster, agents: Any, run_feeds: Any, eventually: Any
) -> None:
    """CLUSTER FAILOVER: agents and router find the new primary by themselves, nobody leaves, and news goes on."""
    writing = await agents(cluster.url, UNITS)
    router = run_feeds(redis=cluster.url)
    for number, one in enumerate(writing):
        one.store(number)
    await agree(router, writing, eventually)
    spare = cluster.spare
    for _ in range(5):
        cluster.fail_over()
        with contextlib.suppress(AssertionError):
            await eventually(lambda: cluster.is_primary(spare), 8.0)
            break
    assert cluster.is_primary(spare)
    for number, one in enumerate(writing):
        one.store(number + 100)
    await agree(router, writing, eventually)
    assert len(router.fleet.replicas) == len(UNITS)
    assert all(unit.trust == "exact" for unit in router.fleet.units.values())


@pytest.fixture
def mortal(cluster: Cluster) -> Iterator[None]:
    """A node that dies is missed soon."""
    with cluster.dying():
        yield


@pytest.mark.usefixtures("mortal")
async def test_a_node_that_dies_costs_its_own_lanes_alone(
    cluster: Cluster, agents: Any, run_feeds: Any, eventually: Any
) -> None:
    """kill -9 of a primary: other lanes go on at once, nobody leaves, its replica takes over, all is exact."""
    writing = await agents(cluster.url, UNITS, lease_s=2.0)
    router = run_feeds(redis=cluster.url, lease_s=2.0)
    for number, one in enumerate(writing):
        one.store(number)
    await agree(router, writing, eventually)
    spare = cluster.spare
    dead = cluster.primary_of(spare)
    lost = [one for one in writing if cluster.owner(Keys().stream_of(one.unit.unit_id)) is dead]
    others = [one for one in writing if one not in lost]
    assert lost
    assert others
    dead.kill()
    for number, one in enumerate(writing):
        one.store(number + 100)
    await agree(router, others, eventually, 10.0)
    await eventually(lambda: cluster.is_primary(spare), 60.0)
    await agree(router, writing, eventually)
    assert len(router.fleet.replicas) == len(UNITS)
    assert all(unit.trust == "exact" for unit in router.fleet.units.values())
    dead.start_again()
    await asyncio.to_thread(cluster.come_back)


@pytest.mark.usefixtures("mortal")
async def test_a_node_that_stays_away_empties_nobodys_fleet(
    cluster: Cluster, agents: Any, run_feeds: Any, eventually: Any, engines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A primary without replica is gone for many lease times: its units stay as they are, their engines are asked.

    One whose engine fails leaves rotation. The node comes back empty, and all is written again.
    """
    caplog.set_level("INFO", "warmroute")
    served = [await engines() for _ in UNITS]
    writing = await agents(cluster.url, UNITS, lease_s=0.6, engines=[one.url for one in served])
    router = run_feeds(redis=cluster.url, lease_s=0.6)
    for number, one in enumerate(writing):
        one.store(number)
    await agree(router, writing, eventually)
    dead = next(node for node in cluster.primaries if node is not cluster.primary_of(cluster.spare))
    lost = [one for one in writing if cluster.owner(Keys().stream_of(one.unit.unit_id)) is dead]
    assert 0 < len(lost) < len(writing)
    failing = served[writing.index(lost[0])]
    asked = failing.health_asked
    dead.kill()
    failing.healthy = False
    name = lost[0].unit.unit_id.partition("/")[0]
    await eventually(lambda: router.fleet.replicas[name].down_reason, 30.0)
    await eventually(lambda: failing.health_asked > asked + 12, 60.0)  # many lease times of 0.6 s
    assert len(router.fleet.replicas) == len(UNITS)
    assert all(unit.trust == "exact" for unit in router.fleet.units.values())
    assert all(router.held(one.unit.unit_id) == one.live for one in writing)
    assert [replica.down_reason for replica in router.fleet.replicas.values()].count(None) == len(UNITS) - 1
    assert caplog.text.count("a part of Redis is lost") == 1
    failing.healthy = True
    dead.start_again()
    await asyncio.to_thread(cluster.come_back)
    for number, one in enumerate(writing):
        one.store(number + 100)
    await agree(router, writing, eventually, 60.0)
    await eventually(lambda: router.fleet.replicas[name].down_reason is None, 30.0)
    await eventually(lambda: all(unit.trust == "exact" for unit in router.fleet.units.values()), 30.0)
    assert len(router.fleet.replicas) == len(UNITS)
