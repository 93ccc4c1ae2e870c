"""Routers share their load through a real Cluster, whose lanes lie on several nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from router.feeds.load_exchange import LoadExchange
from router.feeds.redis_link import RedisLink
from router.fleet.facts import ReplicaFacts, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.kv.acl import router_rules
from router.kv.keys import Keys
from router.kv.redis_slots import SLOTS

REPLICAS = 40  # over all lanes
PARTS = 3


@pytest.fixture(scope="module")
def nodes(node_class: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """Three primaries, each with a third of the slots, and a router's user on each."""
    folder = tmp_path_factory.mktemp("load-cluster")
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")
    started = [node_class(folder / f"c{number}", *options) for number in range(PARTS)]
    for number, node in enumerate(started):
        first, last = number * SLOTS // PARTS, (number + 1) * SLOTS // PARTS - 1
        node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        node.client.execute_command("ACL", "SETUSER", "router", "reset", "on", ">secret", *router_rules().split())
    for node in started[1:]:
        node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", started[0].port)
    yield started
    for node in started:
        node.kill()


class Router:
    """A fleet and an exchange that runs."""

    def __init__(self, url: str) -> None:
        self.fleet = Fleet()
        for number in range(REPLICAS):
            unit = UnitFacts(f"r{number}/0", 0, None, Trust.APPROXIMATE)
            self.fleet.announce(
                ReplicaFacts(f"r{number}", f"http://r{number}:80", "redis", (), (unit,)), time.monotonic()
            )
        self.link = RedisLink(url, Keys())
        self.exchange = LoadExchange(self.fleet, 16)

    def known(self) -> int:
        """Units at which another router has something."""
        return sum(unit.peer_requests for unit in self.fleet.units.values())


async def test_load_reaches_other_routers_whichever_node_a_lane_is_on(
    nodes: list[Any], eventually: Callable[..., Any]
) -> None:
    """Under the documented rights; what is on a node that dies is missing, and the rest goes on."""
    await eventually(
        lambda: all(node.lines("CLUSTER INFO").get("cluster_state") == "ok" for node in nodes), timeout_s=30
    )
    url = f"redis+cluster://router:secret@127.0.0.1:{nodes[0].port}"
    routers = [Router(url), Router(url)]
    running = []
    for router in routers:
        await eventually(lambda router=router: _opened(router.link), timeout_s=20)
        running.append(asyncio.create_task(router.exchange.run(router.link)))
    one, two = routers
    await eventually(lambda: one.exchange.peers.routers == two.exchange.peers.routers == 1, timeout_s=20)
    places = [(unit, unit.in_flight.reserve(0, time.monotonic())) for unit in one.fleet.units.values()]
    await eventually(lambda: two.known() == REPLICAS, timeout_s=20)
    nodes[2].kill()
    for unit, place in places[: REPLICAS // 2]:
        unit.in_flight.release(place, time.monotonic())
    await eventually(lambda: 0 < two.known() < REPLICAS // 2 + 1, timeout_s=20, what="the other lanes go on")
    for task in running:
        assert not task.done(), task
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for router in routers:
        await router.link.close()


async def _opened(link: RedisLink) -> bool:
    try:
        await link.open()
    except Exception:
        return False
    return True
