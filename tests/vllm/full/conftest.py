"""Engines of several set-ups, one after the other, and the seed of the requests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tools.processes import stop_all
from tests.vllm.full.generated import SEED
from tests.vllm.full.line import Line
from tests.vllm.full.models import prepare
from tests.vllm.full.plans import PLANS, Plan


@pytest.fixture(scope="session")
def seed() -> str:
    """What the requests of this run are drawn from."""
    return SEED


@pytest.fixture(scope="session")
def line(
    request: pytest.FixtureRequest, tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Line]:
    """One plan's engine with agent and router, warm and trusted."""
    import redis

    plan: Plan = request.param
    served = prepare(plan, tiny_model, tmp_path_factory.mktemp(plan.name))
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    line = Line(plan, tmp_path_factory.mktemp("line"), valkey_server)
    started = time.monotonic()
    try:
        line.start(served, min(os.sched_getaffinity(0)))
        print(f"the engine of plan {plan.name} started in {time.monotonic() - started:.0f} s")
        yield line
    finally:
        stop_all(line.children, grace_s=20.0)
        line.published.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring tests on one plan together, whichever file they are in: an engine starts once."""
    names = [plan.name for plan in PLANS]

    def place(item: pytest.Item) -> int:
        callspec = getattr(item, "callspec", None)
        plan = None if callspec is None else callspec.params.get("line")
        return names.index(plan.name) if isinstance(plan, Plan) else -1

    items.sort(key=place)
