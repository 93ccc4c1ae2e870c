"""The table of metrics is what is exposed; labels are bounded; series of replicas that left are gone."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from router.fleet.facts import EngineLoad
from router.telemetry.metrics import METRICS, Metrics, metrics_table


def series(metrics: Metrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Every series exposed now."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(sorted(s.labels.items()))) for family in families for s in family.samples}


def test_everything_exposed_is_in_the_table_and_begins_with_warmroute(metrics, announce, fleet):
    """No series but the table's, each with the table's labels; all of the table is exposed."""
    announce("r0")
    fleet.report_load("r0/0", EngineLoad(1, 2, 0.5, 0.0))
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    rows = {row.name.removesuffix("_total"): row for row in METRICS}
    assert set(families) == set(rows)
    for name, family in families.items():
        assert name.startswith("warmroute_")
        assert family.type == rows[name].type
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(rows[name].labels)


def test_the_generated_table_names_every_metric_once():
    """The document's rows: one a metric, with type and meaning."""
    lines = metrics_table().splitlines()[2:]
    assert [re.match(r"\| `(\w+)` \|", line)[1] for line in lines] == [row.name for row in METRICS]
    assert all(row.meaning.endswith(".") for row in METRICS)


def test_clients_cannot_grow_the_series(metrics, announce):
    """Unknown models, paths, codes and statuses share a label each, however many a client makes up."""
    announce("r0")
    metrics.request_ended("/v1/completions", "tiny", 200, 0.1)
    metrics.request_ended("/made/up", "made up", 299, 0.1)
    metrics.error_answered("made up")
    before = series(metrics)
    for number in range(500):
        metrics.request_ended(f"/made/up/{number}", f"model-{number}", 200 + number % 100, 0.1)
        metrics.first_token_seen(f"model-{number}", 0.1) if number == 0 else None
        metrics.error_answered(f"code-{number}")
    grown = {name for name, _ in series(metrics) - before}
    assert grown <= {f"warmroute_ttft_seconds_{end}" for end in ("bucket", "count", "sum")}
    labels = {("endpoint", "other"), ("model", "unknown"), ("status", "2xx")}
    assert metrics.registry.get_sample_value("warmroute_requests_total", dict(labels)) == 501


def test_adapters_without_end_are_bounded(metrics, announce):
    """Models that replicas really serve get a label each, up to a limit; later ones share `other`."""
    for number in range(1_200):
        announce("r0", model=f"adapter-{number}")
        metrics.first_token_seen(f"adapter-{number}", 0.1)
    labels = {dict(found).get("model") for name, found in series(metrics) if name == "warmroute_ttft_seconds_count"}
    assert len(labels) == 1_001
    assert "other" in labels


def test_series_of_removed_replicas_disappear(metrics, announce, fleet):
    """MET-02: 200 replicas that came and went leave no series, and counters of before are untouched."""
    announce("stays")
    metrics.request_ended("/v1/completions", "tiny", 200, 0.1)
    start = series(metrics)
    for number in range(200):
        announce(f"r{number}", 9000 + number)
        fleet.report_load(f"r{number}/0", EngineLoad(1, 1, 0.1, 0.0))
        assert len(series(metrics)) > len(start)
        fleet.withdraw(f"r{number}")
    assert series(metrics) == start
    labels = {"endpoint": "/v1/completions", "model": "tiny", "status": "2xx"}
    assert metrics.registry.get_sample_value("warmroute_requests_total", labels) == 1


def test_unknown_load_is_no_series(metrics, announce, fleet):
    """A replica whose figures are unknown shows none: zero would say idle."""
    announce("r0")
    assert metrics.registry.get_sample_value("warmroute_replica_running_requests", {"replica": "r0"}) is None
    fleet.report_load("r0/0", EngineLoad(7, 0, 0.5, 0.0))
    assert metrics.registry.get_sample_value("warmroute_replica_running_requests", {"replica": "r0"}) == 7


def test_a_down_replica_changes_its_state_series(metrics, announce, fleet):
    """The state is a label: the series of the former state is gone at the next scrape."""
    announce("r0")
    fleet.mark_down("r0", "test")
    states = {dict(labels)["state"] for name, labels in series(metrics) if name == "warmroute_replica_state"}
    assert states == {"down"}
    assert metrics.registry.get_sample_value("warmroute_replicas", {"state": "down"}) == 1
