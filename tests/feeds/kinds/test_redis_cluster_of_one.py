"""Agents and routers on a Cluster whose slots all lie on one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from replica.agent import redis_link as agent_link
from router.feeds import redis_link
from router.kv.keys import Keys
from router.kv.redis_slots import SLOTS

UNITS = [f"r{number}/0" for number in range(12)]
OPTIONS = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slow is not taken for a Redis that hangs."""
    monkeypatch.setattr(agent_link, "TIMEOUT_S", 5.0)
    monkeypatch.setattr(redis_link, "COMMAND_TIMEOUT_S", 5.0)


async def agree(router: Any, writing: list[Any], eventually: Any, timeout_s: float = 40.0) -> None:
    """The router's index is what the agents hold."""
    await eventually(lambda: all(router.held(one.unit.unit_id) == one.live for one in writing), timeout_s)


async def test_one_node_with_all_slots_gives_no_crossslot(
    new_node: Callable[..., Any], agents: Any, run_feeds: Any, eventually: Any
) -> None:
    """Even where all lanes lie on one node, no command reads several slots, which a Cluster refuses.

    All nodes that hang are a lost Redis: that is noticed, nobody leaves, and all goes on afterwards.
    """
    node = new_node(*OPTIONS)
    node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
    with pytest.raises(redis.exceptions.ResponseError, match="hash to the same slot"):
        node.client.execute_command("XREAD", "STREAMS", Keys().stream(0), Keys().stream(1), "0", "0")
    await eventually(lambda: node.lines("CLUSTER INFO").get("cluster_state") == "ok", 30.0)
    url = f"redis+cluster://127.0.0.1:{node.port}"
    writing = await agents(url, UNITS)
    for one in writing:
        one.store(*range(40))
    router = run_feeds(redis=url)
    await agree(router, writing, eventually)
    assert router.value("warmroute_feed_losses_total") == 0
    with node.hung():
        await eventually(lambda: not router.feeds.redis.connected, 40.0)
        assert len(router.fleet.replicas) == len(UNITS)
    for one in writing:
        one.store(1_000)
    await agree(router, writing, eventually)
    assert router.value("warmroute_feed_losses_total") == 1
