"""The local fleet: everything comes up, answers, and is gone afterwards."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tools.demo_events import evicted_blocks
from router.tools.local_fleet import EngineOptions, LocalFleet
from router.tools.processes import StartError


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """Two replicas with agents, small caches, ten times the speed."""
    engine = EngineOptions(num_blocks=64, prefill_tokens_per_s=80_000, decode_step_s=0.002)
    with LocalFleet(engine, replicas=2) as fleet:
        yield fleet


def ask(fleet: LocalFleet, text: str) -> tuple[str, dict[str, int]]:
    """Ask through the router; return the replica's id and the usage."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    connection = http.client.HTTPConnection(fleet.router.http.removeprefix("http://"), timeout=20)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    usage = json.load(response)["usage"]
    connection.close()
    return response.headers["x-warmroute-replica"], usage


def test_the_router_answers_for_all_replicas(fleet: LocalFleet) -> None:
    """Once entered, requests are answered at once and by the fleet's own replicas."""
    replicas = {ask(fleet, f"question number {number}")[0] for number in range(12)}
    assert replicas == {"r0", "r1"}


def test_evictions_are_read_from_an_engines_own_events(fleet: LocalFleet) -> None:
    """More distinct prompts than a cache of 64 blocks holds leave removed blocks in both engines' history."""
    for number in range(40):
        ask(fleet, f"{number} " + "an answer is a question about the list of words " * 8)
    assert all(evicted_blocks(engine.replay) > 0 for engine in fleet.engines)


def test_no_process_is_left_when_it_is_left() -> None:
    """Leaving by an exception ends every process and removes the folder."""
    seen: list[tuple[list[int], Path]] = []

    def fail_inside() -> None:
        with LocalFleet(replicas=1, agents=False) as fleet:
            seen.append(([child.pid for child in fleet.children], fleet.folder))
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_inside()
    pids, folder = seen[0]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not folder.exists()


def test_an_engine_that_cannot_start_is_shown(tmp_path: Path) -> None:
    """The error holds the engine's own words, and nothing is left running."""
    fleet = LocalFleet(EngineOptions(tokenizer=tmp_path), replicas=1, agents=False)
    with pytest.raises(StartError, match=str(tmp_path)):
        fleet.start()
    assert fleet.children == []


def test_a_dead_process_is_noticed() -> None:
    """`check` names the process that ended by itself."""
    with LocalFleet(replicas=1, agents=False) as fleet:
        fleet.check()
        fleet.engines[0].child.kill()
        with pytest.raises(StartError, match="engine-0 ended"):
            fleet.check()


def test_an_engine_that_was_killed_on_purpose_is_no_failure(fleet: LocalFleet) -> None:
    """`kill` is a crash that was asked for: the others answer on. The last test of this fleet."""
    fleet.kill(1)
    fleet.check()
    assert {ask(fleet, f"after all, number {number}")[0] for number in range(6)} == {"r0"}
