"""What an autoscaler asks, and the same as a metric."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from router.fleet.facts import EngineLoad


async def test_queue_is_the_mean_over_ready_replicas(admins: Any) -> None:
    """8,000 tokens at 8,000 tokens/s wait at one of two: half a second; what peers placed counts too."""
    admin = await admins()
    admin.announce("a", 9001)
    admin.announce("b", 9002)
    now_s = time.monotonic()
    unit = admin.fleet.unit("a/0")
    speed = unit.in_flight.prefill_tokens_per_s
    unit.peer_tokens = speed
    status, found = await admin.get("/admin/autoscaling/tiny")
    assert status == 200
    assert (found["replicas"], found["queue_s"]) == (2, 0.5)
    admin.fleet.report_load("a/0", EngineLoad(5, 3, 0.5, now_s))
    admin.fleet.report_load("b/0", EngineLoad(1, 1, 0.25, now_s))
    _, found = await admin.get("/admin/autoscaling/tiny")
    assert (found["waiting"], found["kv_usage_share"]) == (4, 0.375)
    value = admin.metrics.registry.get_sample_value("warmroute_model_queue_seconds", {"model": "tiny"})
    assert value == pytest.approx(0.5)


async def test_only_ready_replicas_count(admins: Any) -> None:
    """One that is down takes its queue along; a fleet without any asks for nothing."""
    admin = await admins()
    admin.announce("a", 9001)
    admin.fleet.unit("a/0").peer_tokens = 80_000.0
    admin.fleet.mark_down("a", "gone")
    _, found = await admin.get("/admin/autoscaling/tiny")
    assert (found["replicas"], found["queue_s"], found["captured_share"]) == (0, 0.0, 0.0)


async def test_unknown_models_are_404(admins: Any) -> None:
    """A name that nobody serves is a mistake in the scaler's configuration, not an idle model."""
    admin = await admins()
    status, answer = await admin.get("/admin/autoscaling/other/model")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_kedas_metrics_api_can_read_it(admins: Any) -> None:
    """It sends a bearer token, takes status 200 alone, and wants one number where the chart's `valueLocation` says."""
    chart = (Path(__file__).parents[2] / "helm/templates/autoscaling-pools.yaml").read_text()
    (location,) = re.findall(r"valueLocation: (\S+)", chart)
    admin = await admins(admin={"token": "a-token-of-length"})
    admin.announce("a", 9001)
    admin.fleet.unit("a/0").peer_tokens = 8_000.0
    assert (await admin.get("/admin/autoscaling/tiny"))[0] == 401
    status, found = await admin.get("/admin/autoscaling/tiny", authorization="Bearer a-token-of-length")
    assert status == 200
    assert type(found[location]) is float
    assert found[location] > 0
