"""Engines of several set-ups, one after the other, and the seed of the requests."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tools.processes import stop_all
from tests.vllm.full.generated import SEED
from tests.vllm.full.line import Line
from tests.vllm.full.plans import Plan


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
    model = plan.make_tokenizer(tmp_path_factory.mktemp(plan.name) / "model")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copyfile(tiny_model / name, model / name)
    shutil.copytree(tiny_model / "adapters", model / "adapters")
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    line = Line(plan, tmp_path_factory.mktemp("line"), valkey_server)
    started = time.monotonic()
    try:
        line.start(model, min(os.sched_getaffinity(0)))
        print(f"the engine of plan {plan.name} started in {time.monotonic() - started:.0f} s")
        yield line
    finally:
        stop_all(line.children, grace_s=20.0)
        line.published.close()
