"""A replica that joins gets the hottest beginnings, one that drains hands its own on: real engines, agents, Valkey."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtest.workloads.text import TextMaker, load_tokenizer, tokenizer_folder
from router.fleet.fleet import SETTLED_S
from router.tools.local_fleet import EngineOptions, LocalFleet
from router.tools.processes import Child, stop_all

KEY = "an-engine-key"
OPTIONS = EngineOptions(num_blocks=2_048, prefill_tokens_per_s=100_000, decode_step_s=0.001, extra=("--api-key", KEY))
ROUTER = {"upstream": {"api_key": KEY}, "placement": {"warming": {"join": True, "drain": True, "timeout_s": 60}}}
SYSTEMS, TIMES, SYSTEM_TOKENS = 4, 8, 500


@pytest.fixture
def warm_fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFleet]:
    """Two replicas behind an API key, and a router that warms."""
    monkeypatch.setenv("WARMROUTE_AGENT_ENGINE_API_KEY", KEY)
    with LocalFleet(OPTIONS, replicas=2, router=ROUTER) as running:
        yield running


@pytest.fixture
def newcomer(warm_fleet: LocalFleet) -> Iterator[Callable[[], list[Child]]]:
    """Start one more replica with its agent."""
    children: list[Child] = []
    warmroute = [sys.executable, "-m", "router.cli"]

    def start() -> list[Child]:
        children.append(Child("engine-new", [*warmroute, "simengine", *OPTIONS.arguments()], warm_fleet.folder))
        return children

    yield start
    stop_all(children)


async def test_joining_and_leaving_replicas_are_warmed(
    warm_fleet: LocalFleet,
    newcomer: Callable[[], list[Child]],
    client_of: Callable[[str], Any],
    eventually: Callable[..., Any],
) -> None:
    """What the fleet is asked most is at the new one before its first request, and at another before the old one goes.
    Clients' series and decisions show clients' requests alone."""
    client = client_of(warm_fleet.router.http)
    maker = TextMaker(load_tokenizer(tokenizer_folder()))
    rng = random.Random("warming")
    systems = [maker.make(SYSTEM_TOKENS, rng) for _ in range(SYSTEMS)]

    def body(number: int, question: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": systems[number]}, {"role": "user", "content": question}]
        return {"model": "tiny", "messages": messages, "max_tokens": 1}

    def matches(number: int) -> dict[str, int]:
        """What each replica that may take it has of a prompt."""
        decision = client.send("POST", "/admin/explain", body(number, "anything"))[2]
        return {item["replica"]: item["matched_tokens"] for item in decision["candidates"]}

    def metric(line: str) -> float:
        rows = client.send("GET", "/metrics")[2].decode().splitlines()
        return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith(line))

    sent = 0
    for number in range(SYSTEMS):
        for turn in range(TIMES):
            asked = body(number, f"question {turn}")
            assert client.send("POST", "/v1/chat/completions", asked, authorization=f"Bearer {KEY}")[0] == 200
            sent += 1
    await eventually(
        lambda: all(max(matches(number).values()) > 0.8 * SYSTEM_TOKENS for number in range(SYSTEMS)), timeout_s=60
    )
    started_s = metric("warmroute_config_loaded_timestamp_seconds")
    await eventually(lambda: time.time() > started_s + SETTLED_S + 2, timeout_s=60)

    children = newcomer()
    ready = await eventually(children[0].ready_line, timeout_s=60)
    agent = [sys.executable, "-m", "router.cli", "agent", "--state-dir", str(warm_fleet.folder / "agents")]
    agent += ["--engine-url", ready["http"], "--redis", warm_fleet.redis_url, "--replica-id", "r9"]
    children.append(Child("agent-new", agent, warm_fleet.folder))
    await eventually(lambda: "r9" in matches(0), timeout_s=60, what="the new replica takes requests")
    await eventually(
        lambda: all(matches(number)["r9"] > 0.7 * SYSTEM_TOKENS for number in range(SYSTEMS)), timeout_s=60
    )
    assert metric('warmroute_warming_requests_total{purpose="join",result="computed"}') >= SYSTEMS
    assert metric('warmroute_warming_tokens_total{purpose="join"}') >= 0.7 * SYSTEM_TOKENS * SYSTEMS

    # Only one of the first two holds each system prompt, and the new one all of them: take that away from the picture.
    assert client.send("POST", "/admin/replicas/r9/drain", {})[0] == 200
    await eventually(lambda: "r9" not in matches(0))
    homes = {number: max(matches(number), key=matches(number).__getitem__) for number in range(SYSTEMS)}
    leaving = homes[0]
    [staying] = {"r0", "r1"} - {leaving}
    assert client.send("POST", f"/admin/replicas/{leaving}/drain", {})[0] == 200
    await eventually(
        lambda: all(matches(number)[staying] > 0.7 * SYSTEM_TOKENS for number in range(SYSTEMS)), timeout_s=60
    )
    assert metric('warmroute_warming_requests_total{purpose="drain",result="computed"}') >= 1

    assert metric("warmroute_requests_total{") == sent
    assert metric("warmroute_decisions_total{") == sent
    decisions = client.send("GET", "/admin/decisions?limit=500")[2]["decisions"]
    assert len(decisions) == sent
    logs = "".join((warm_fleet.folder / name).read_text() for name in ("router.err", "router.out"))
    assert systems[0][:40] not in logs
