"""Several workers over agents and a Valkey, all processes: each knows what engines hold, and they answer as one."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.tools.local_fleet import EngineOptions, LocalFleet

FAST = EngineOptions(num_blocks=64, prefill_tokens_per_s=200_000, decode_step_s=0.001)
"""So few blocks that prompts evict each other."""
WORKERS = 2


@pytest.fixture(scope="module")
def crew() -> Iterator[tuple[LocalFleet, Path]]:
    """A fleet of two replicas behind a router of two workers, and the folder in which their sockets are."""
    with tempfile.TemporaryDirectory(prefix="wr-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        with LocalFleet(FAST, replicas=2, router={"workers": WORKERS}) as fleet:
            yield fleet, Path(folder)


@pytest.fixture
def client(crew: Any, client_of: Callable[[str], Any]) -> Any:
    """A client of the router's address: each request is a connection of its own, so either worker may get it."""
    return client_of(crew[0].router.http)


@pytest.fixture
def workers(crew: Any, workers_in: Callable[[Path], list[Any]]) -> list[Any]:
    """A client of each worker alone."""
    found = workers_in(crew[1])
    assert len(found) == WORKERS
    return found


def blocks_in(fleet: LocalFleet, number: int, client_of: Callable[[str], Any]) -> set[str]:
    """What an engine holds, by its own memory."""
    _, _, answer = client_of(fleet.engines[number].http).send("GET", "/debug/blocks")
    return set(answer["ranks"][0]["blocks"])


def blocks_known(worker: Any, number: int) -> set[str]:
    """What one worker's index says that an engine holds."""
    status, _, answer = worker.send("GET", f"/admin/replicas/r{number}/blocks?limit=100000")
    return {block[0] for unit in answer["units"] for block in unit["listed"]} if status == 200 else set()


def agree(fleet: LocalFleet, workers: list[Any], client_of: Callable[[str], Any]) -> bool:
    """Whether every worker knows of every engine just what it holds, and that is something."""
    held = [blocks_in(fleet, number, client_of) for number in range(fleet.replicas)]
    return any(held) and all(blocks_known(each, n) == held[n] for each in workers for n in range(fleet.replicas))


def decisions(client: Any) -> list[dict[str, Any]]:
    """All workers' decisions."""
    found: list[dict[str, Any]] = client.send("GET", "/admin/decisions?limit=1000")[2]["decisions"]
    return found


def metric(client: Any, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    _, _, text = client.send("GET", "/metrics")
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def a_worker_of(supervisor: int) -> int:
    """The process of one of a router's workers."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return next(int(p) for p in children if b"router.workers.process" in Path(f"/proc/{p}/cmdline").read_bytes())


def talk(client: Any, topic: str, count: int) -> list[tuple[int, int]]:
    """Have chats of two turns; return what was predicted and what was delivered, turn by turn."""
    found = []
    for number in range(count):
        asked = f"{topic} {number}: " + "the cache tells what it holds, block for block " * 4
        _, predicted, delivered, answer = client.chat(asked)
        found.append((predicted, delivered))
        said = answer["choices"][0]["message"]["content"]
        _, predicted, delivered, _ = client.chat(asked, said, "and then?")
        found.append((predicted, delivered))
    return found


async def test_each_worker_knows_what_every_engine_holds(
    crew: Any, client: Any, workers: list[Any], client_of: Any, eventually: Any
) -> None:
    """Both workers took requests, blocks came and went, and each worker's own index is the engines' memory."""
    fleet, _ = crew
    talk(client, "one", 30)
    assert {each["worker"] for each in decisions(client)} == set(range(WORKERS))
    await eventually(lambda: agree(fleet, workers, client_of), timeout_s=30, what="both indexes are right")


async def test_one_worker_predicts_what_requests_of_the_other_left(
    crew: Any, client: Any, workers: list[Any], client_of: Any, eventually: Any
) -> None:
    """A chat goes on at whichever worker takes its connection: what is predicted is delivered, to the block."""
    fleet, _ = crew
    asked = "whoever takes it " * 30
    client.chat(asked)
    await eventually(lambda: agree(fleet, workers, client_of), timeout_s=30)
    before = len(decisions(client))
    seen: set[int] = set()
    for _ in range(60):
        _, predicted, delivered, _ = client.chat(asked)
        assert predicted == delivered > 0
        seen = {each["worker"] for each in decisions(client)[:-before]}
        if len(seen) == WORKERS:
            break
    assert len(seen) == WORKERS


async def test_figures_are_of_all_workers_together(
    crew: Any, client: Any, workers: list[Any], client_of: Any, eventually: Any
) -> None:
    """The reuse ledger, requests and decisions add up; what is known of the fleet is not counted twice."""
    fleet, _ = crew
    before = [
        metric(client, "warmroute_reuse_tokens_total", stage="delivered"),
        metric(client, "warmroute_prompt_tokens_total"),
    ]
    ids = {each["request_id"] for each in decisions(client)}
    delivered = sum(tokens for _, tokens in talk(client, "figures", 10))
    new = [each for each in decisions(client) if each["request_id"] not in ids]
    assert len(new) == 20
    assert sum(each["outcome"]["cached_tokens"] for each in new) == delivered > 0
    assert metric(client, "warmroute_reuse_tokens_total", stage="delivered") - before[0] == delivered
    prompts = metric(client, "warmroute_prompt_tokens_total")
    assert prompts - before[1] == sum(each["outcome"]["prompt_tokens"] for each in new)
    shares = [metric(each, "warmroute_prompt_tokens_total") for each in workers]
    assert sum(shares) == prompts
    assert min(shares) > 0
    assert metric(client, "warmroute_replicas", state="ready") == fleet.replicas
    assert metric(client, "warmroute_feed_units", state="synced") == fleet.replicas


async def test_a_worker_that_is_replaced_knows_all_again_and_no_figure_falls(
    crew: Any, client: Any, workers: list[Any], workers_in: Any, client_of: Any, eventually: Any
) -> None:
    """SIGKILL for one of them under traffic: the new one reads snapshots and lanes, and serves."""
    fleet, folder = crew
    talk(client, "before", 5)
    prompts = metric(client, "warmroute_prompt_tokens_total")
    os.kill(a_worker_of(fleet.router.child.pid), signal.SIGKILL)
    await eventually(lambda: metric(client, "warmroute_worker_deaths_total") == 1, timeout_s=30)
    talk(client, "meanwhile", 5)
    await eventually(lambda: metric(client, "warmroute_workers", state="serving") == WORKERS, timeout_s=60)
    await eventually(lambda: agree(fleet, workers_in(folder), client_of), timeout_s=30)
    assert metric(client, "warmroute_prompt_tokens_total") > prompts
