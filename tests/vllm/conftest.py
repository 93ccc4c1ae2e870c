"""Two real engines with agents, Valkey and the router, for the tests against the real thing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.engines import ADAPTERS, VENV, make_model
from tests.vllm.full.generated import SEED
from tests.vllm.real_fleet import RealFleet, real_fleet


def pytest_report_header() -> str:
    """Tell what repeats the generated requests of a run (here, since pytest asks no conftest of a deeper folder)."""
    return f"generated requests: WARMROUTE_TEST_SEED={SEED}"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model, made by the engine's Python."""
    if not (VENV / "bin" / "python").exists():
        pytest.fail(f"the real engine is not in {VENV}: run `make test-vllm`, which installs it")
    options = [word for name in ADAPTERS for word in ("--adapter", name)]
    return make_model(tmp_path_factory.mktemp("tiny-model"), *options)


@pytest.fixture(scope="session")
def fleet(tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """The whole fleet, warm, with caches that never fill."""
    with real_fleet(tiny_model, valkey_server, tmp_path_factory.mktemp("f")) as running:
        yield running
