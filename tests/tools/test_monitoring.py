"""Grafana's dashboards and Prometheus' rules: written from the table of metrics, and as they lie in the chart."""

from __future__ import annotations

import json
from pathlib import Path

from router.telemetry.table import METRICS
from router.tools.alerts import ALERTS, FILE, rules, unknown_metrics
from router.tools.grafana import dashboards, expressions

FILES = Path(__file__).parents[2] / "helm" / "files"


def test_the_chart_ships_what_the_code_says() -> None:
    """`make docs` writes them."""
    for name, text in {**dashboards(), FILE: rules()}.items():
        assert (FILES / name).read_text(encoding="utf-8") == text, name


def test_every_metric_of_the_table_is_on_a_dashboard() -> None:
    """And none that is not in it, in dashboards or alerts."""
    told = " ".join(expressions())
    missing = [row.name for row in METRICS if f"{row.name}{{" not in told and f"{row.name}_bucket{{" not in told]
    assert missing == ["warmroute_build_info"], "which the variables ask for"
    assert set().union(*map(unknown_metrics, [told, *(alert.expr for alert in ALERTS)])) == set()


def test_panels_do_not_overlap() -> None:
    """In each row of each dashboard, folded ones too; ids are unique."""
    for text in dashboards().values():
        board = json.loads(text)
        panels = [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells: set[tuple[int, int]] = set()
        for panel in panels:
            box = panel["gridPos"]
            taken = {(box["x"] + x, box["y"] + y) for x in range(box["w"]) for y in range(box["h"])}
            assert box["x"] + box["w"] <= 24
            assert not taken & cells, panel["title"]
            cells |= taken


def test_every_alert_says_what_to_do() -> None:
    """A summary of one line, and a remedy."""
    for alert in ALERTS:
        assert alert.summary
        assert alert.remedy.endswith(".")
        assert alert.severity in ("warning", "critical")
