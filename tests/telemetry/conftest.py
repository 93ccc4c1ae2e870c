"""A small fleet and its metrics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.prefix_index import PrefixIndex
from router.request.reader import PromptReader
from router.request.token_cache import TokenCache
from router.telemetry.access_log import AccessLog
from router.telemetry.cache_series import CacheSeries
from router.telemetry.decisions import DecisionLog
from router.telemetry.fleet_series import FleetSeries
from router.telemetry.ledger_series import register_series
from router.telemetry.metrics import Metrics
from router.telemetry.recorder import Recorder


@pytest.fixture
def index() -> PrefixIndex:
    """An empty index."""
    return PrefixIndex()


@pytest.fixture
def fleet(index: PrefixIndex) -> Fleet:
    """An empty fleet."""
    return Fleet(on_unit_withdrawn=lambda unit: index.clear(unit.slot))


@pytest.fixture
def metrics(fleet: Fleet, index: PrefixIndex) -> Metrics:
    """Metrics of that fleet, as a router sets them up."""
    one = Metrics("1.2.3", ["/v1/completions"], lambda name: fleet.base_model(name) is not None)
    one.register(FleetSeries(fleet, index, lambda: 0.0))
    one.register(CacheSeries(TokenCache(), PromptReader(lambda _: None).memo))
    register_series(one, Recorder(one, DecisionLog(1), AccessLog(enabled=False)), fleet)
    return one


@pytest.fixture
def announce(fleet: Fleet) -> Callable[..., None]:
    """`announce("r0")`: a replica serving `tiny`."""

    def add(name: str, port: int = 8000, model: str = "tiny") -> None:
        unit = UnitFacts(f"{name}/0", 0, None, Trust.EXACT)
        models = (ServedModel(model, model),)
        fleet.announce(ReplicaFacts(name, f"http://10.0.0.1:{port}", "redis", models, (unit,)), 0.0)

    return add
