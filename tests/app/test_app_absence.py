"""Who is missed and who is not, with real processes: agents, engines and Valkey that go away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from router.tools.local_fleet import EngineOptions, LocalFleet

TEXT = "Who is missed when it is away, and who is not? " * 6


@pytest.fixture
def three(client_of: Callable[[str], Any]) -> Iterator[tuple[LocalFleet, Any]]:
    """Three replicas whose agents' leases are short, and a client of their router."""
    engine = EngineOptions(num_blocks=256, prefill_tokens_per_s=200_000, decode_step_s=0.001)
    with LocalFleet(engine, replicas=3, agent_arguments=("--lease-s", "2")) as fleet:
        yield fleet, client_of(fleet.router.http)


def replicas(client: Any) -> dict[str, Any]:
    """Each replica as the router sees it."""
    return {item["replica"]: item for item in client.send("GET", "/admin/replicas")[2]["replicas"]}


def answered_by(client: Any, prompts: int, name: str) -> set[str]:
    """Who answers so many prompts that share nothing; none fails."""
    found = set()
    for number in range(prompts):
        body = {"model": "tiny", "prompt": f"{name} {number} {TEXT}", "max_tokens": 1}
        status, headers, answer = client.send("POST", "/v1/completions", body)
        assert status == 200, answer
        found.add(headers["x-warmroute-replica"])
    return found


@pytest.mark.timeout(240)
async def test_a_missing_agent_lowers_trust_a_dead_engine_leaves_and_an_emptied_redis_changes_nobody(
    three: tuple[LocalFleet, Any], eventually: Callable[..., Any]
) -> None:
    """In this order: an agent is killed, an engine is killed, Valkey is emptied. No request fails meanwhile."""
    fleet, client = three
    assert answered_by(client, 24, "before") == {"r0", "r1", "r2"}

    fleet.agents[0].child.kill()
    unit = await eventually(lambda: _missing(client, "r0"), timeout_s=60)
    assert unit["trust"] == "approximate"
    assert replicas(client)["r0"]["state"] == "ready"
    assert "r0" in answered_by(client, 24, "without an agent")

    fleet.engines[1].child.kill()
    await eventually(lambda: replicas(client).get("r1", {"state": "gone"})["state"] in ("down", "gone"), timeout_s=60)
    assert answered_by(client, 24, "without an engine") == {"r0", "r2"}

    before = replicas(client)["r2"]["units"][0]["blocks"]
    with redis.Redis.from_url(fleet.redis_url) as valkey:
        valkey.flushall()
        await eventually(lambda: valkey.exists("{wr}:units"), timeout_s=5)
    assert answered_by(client, 24, "emptied") == {"r0", "r2"}
    assert {name for name, item in replicas(client).items() if item["state"] == "ready"} == {"r0", "r2"}
    await eventually(lambda: _holds(client, "r2", before), timeout_s=5)


def _missing(client: Any, name: str) -> dict[str, Any] | None:
    unit: dict[str, Any] = replicas(client)[name]["units"][0]
    return unit if unit["reason"] == "its agent is missing" else None


def _holds(client: Any, name: str, blocks: int) -> bool:
    unit = replicas(client)[name]["units"][0]
    return bool(unit["trust"] == "exact" and unit["blocks"] >= min(blocks, 200))
