"""The agent's metrics: one table, counters that are counters, and a document that has them all."""

from __future__ import annotations

from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.metrics import METRICS, AgentMetrics
from replica.agent.proof import SchemeProof
from replica.agent.unit import UnitState

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def heard() -> UnitState:
    unit = UnitState("r0/0", VllmAdapter(), SchemeProof("none", 16, None), 4)
    stored = ["BlockStored", [7, 8], None, list(range(32)), 16]
    unit.accept(0, msgspec.msgpack.encode([1.0, [stored, ["What"]], 0]))
    return unit


def test_what_a_unit_heard_is_exposed_under_its_name_and_type() -> None:
    """Events, skipped ones, blocks: with the unit's name, counters with `_total`."""
    families = {f.name: f for f in text_string_to_metric_families(AgentMetrics().render([heard()]).decode())}
    values = {(s.name, *sorted(s.labels.values())): s.value for f in families.values() for s in f.samples}
    assert values[("warmroute_agent_events_total", "BlockStored", "r0/0")] == 1
    assert values[("warmroute_agent_skipped_total", "r0/0", "unknown_event")] == 1
    assert values[("warmroute_agent_blocks", "r0/0")] == 2
    assert families["warmroute_agent_gaps"].type == "counter"
    assert families["warmroute_agent_blocks"].type == "gauge"


def test_a_unit_that_left_has_no_series() -> None:
    """Nothing is told of it any more."""
    metrics = AgentMetrics()
    metrics.render([heard()])
    assert b'unit="r0/0"' not in metrics.render([])


def test_everything_exposed_is_in_the_table_and_in_the_document() -> None:
    """With the names that Prometheus sees."""
    text = DOCUMENT.read_text(encoding="utf-8")
    families = text_string_to_metric_families(AgentMetrics().render([heard()]).decode())
    exposed = {f.name for f in families if not f.name.endswith("_created")}
    assert exposed == {f"warmroute_agent_{spec.name}" for spec in METRICS}
    assert [spec.exposed_name for spec in METRICS if f"`{spec.exposed_name}`" not in text] == []
