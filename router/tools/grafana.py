"""Grafana dashboards, made from the table of metrics: type, labels and unit of a metric say how it is asked for.

    python -m router.tools.grafana helm/files        # `make docs`

Two dashboards: the fleet and reuse. What no panel of either shows has one in the last, folded row of the first, so no
metric of the table is missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.telemetry.table import METRICS, MetricSpec, spec

WIDTH = 24
HEIGHT = 8
SELECT = '{job=~"$job", instance=~"$instance"}'
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        metrics: Names without `warmroute_`, that it is about.
        by: Labels that its series are told apart by; for a histogram beside the quantiles.
        exprs: (expression, legend), where asking for each metric is not what is wanted; `$S` stands for the selector.
        unit: Grafana's; empty: what ends the first metric's name.
        kind: `timeseries`, `stat`, `heatmap`, `table`.
        stacked: Series lie on top of each other.
        width: Of 24.
    """

    title: str
    metrics: Sequence[str]
    by: Sequence[str] = ()
    exprs: Sequence[tuple[str, str]] = ()
    unit: str = ""
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 8
    most: float | None = None

    def queries(self) -> list[tuple[str, str]]:
        """Return (expression, legend) of each series."""
        if self.exprs:
            return [(expr.replace("$S", SELECT), legend) for expr, legend in self.exprs]
        return [query for name in self.metrics for query in _queries(_row(name), self.by)]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard: rows of panels."""

    uid: str
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    folded: Sequence[Panel] = field(default_factory=tuple)


_PROMPT = "sum(rate(warmroute_prompt_tokens_total$S[$__rate_interval]))"


def _stage(stage: str, by: str = "") -> str:
    selector = SELECT[:-1] + f', stage="{stage}"' + "}"
    return f"sum{by}(rate(warmroute_reuse_tokens_total{selector}[$__rate_interval]))"


FLEET = Dashboard(
    "warmroute-fleet",
    "Warmroute / Fleet",
    (
        (
            "Requests",
            (
                Panel("Requests/s by status", ["requests_total"], ["status"], stacked=True),
                Panel("Errors of the router's own", ["errors_total"], ["code"], stacked=True),
                Panel("Time to first token", ["ttft_seconds"]),
                Panel("From head to end", ["request_seconds"]),
                Panel("Waiting and in flight", ["queue_requests", "in_flight_requests"]),
                Panel("Waited for room", ["queue_seconds"]),
                Panel("Sent again", ["retries_total"], ["reason"], stacked=True),
                Panel("Clients that left, replicas left alone", ["client_aborts_total", "ejections_total"]),
                Panel("Tenants' requests/s", ["tenant_requests_total"], ["tenant"], stacked=True),
            ),
        ),
        (
            "Replicas",
            (
                Panel("Replicas by state", ["replicas"], ["state"], stacked=True),
                Panel("KV use", ["replica_kv_usage_share"], ["replica"], most=1.0),
                Panel("Requests in flight", ["replica_requests"], ["replica"]),
                Panel("Backlog", ["replica_backlog_tokens"], ["replica"]),
                Panel("Running, by the engine", ["replica_running_requests"], ["replica"]),
                Panel("Waiting, by the engine", ["replica_waiting_requests"], ["replica"]),
                Panel("Blocks in the index", ["index_blocks"], ["replica"]),
                Panel("Age of the index", ["index_age_seconds"], ["replica"]),
                Panel("Time to first token, by replica", ["replica_ttft_seconds"], ["replica"]),
                Panel("Ended, by replica", ["replica_ended_requests_total"], ["replica", "result"]),
                Panel("Trust", ["replica_trust"], ["state"], stacked=True),
            ),
        ),
        (
            "The router itself",
            (
                Panel("To decide", ["decision_seconds"]),
                Panel("To render and tokenise", ["tokenize_seconds"]),
                Panel("From Redis to the index", ["feed_lag_seconds"]),
                Panel("Feeds", ["feed_up"], ["feed"], most=1.0),
                Panel("Messages of agents", ["feed_messages_total"], ["kind"]),
                Panel("Loads of the configuration", ["config_reloads_total"], ["result"]),
            ),
        ),
    ),
)
REUSE = Dashboard(
    "warmroute-reuse",
    "Warmroute / Reuse",
    (
        (
            "The reuse ledger",
            (
                Panel(
                    "Hit rate",
                    ["reuse_tokens_total", "prompt_tokens_total"],
                    exprs=[
                        (f"{_stage('delivered')} / {_PROMPT}", "delivered"),
                        (f"{_stage('captured')} / {_PROMPT}", "captured: the chosen replica had it"),
                        (f"{_stage('available')} / {_PROMPT}", "available: some replica had it"),
                    ],
                    unit="percentunit",
                    width=16,
                    most=1.0,
                ),
                Panel(
                    "Hit rate now",
                    ["reuse_tokens_total"],
                    exprs=[(f"{_stage('delivered')} / {_PROMPT}", "delivered")],
                    unit="percentunit",
                    kind="stat",
                    most=1.0,
                ),
                Panel("Lost, by reason", ["lost_tokens_total"], ["reason"], stacked=True, width=16),
                Panel(
                    "A cache without end would have hit",
                    ["infinite_cache_hit_tokens", "prompt_tokens_total"],
                    exprs=[
                        (
                            "sum(warmroute_infinite_cache_hit_tokens$S) / sum(warmroute_prompt_tokens_total$S)",
                            "of all prompts since the start",
                        )
                    ],
                    unit="percentunit",
                    most=1.0,
                ),
                Panel("Read from caches, by replica", ["replica_reuse_tokens_total"], ["replica", "stage"]),
                Panel("Not reported by engines", ["reuse_tokens_total"], exprs=[(_stage("unobserved"), "tokens/s")]),
                Panel("Prompt tokens/s", ["prompt_tokens_total"], ["model"], stacked=True),
                Panel("Tokens by tenant", ["tenant_tokens_total"], ["tenant", "kind"]),
                Panel("Delivered less predicted", ["prediction_difference_tokens"]),
            ),
        ),
        (
            "Whether predictions hold",
            (
                Panel("Verdicts", ["predictions_total"], ["verdict"], stacked=True),
                Panel("Prompts placed by load alone", ["not_understood_total"], ["reason"], stacked=True),
                Panel("Believed and not there", ["shortfall_blocks_total"]),
                Panel("Blocks applied", ["feed_blocks_total"], ["op"]),
                Panel("Gaps and resyncs", ["feed_gaps_total", "feed_resyncs_total"]),
                Panel("Token cache", ["token_cache_lookups_total"], ["kind", "result"]),
            ),
        ),
    ),
)


def dashboards() -> dict[str, str]:
    """Return by file name each dashboard as JSON, as Grafana imports it."""
    shown = {
        f"warmroute_{name}" for board in (FLEET, REUSE) for _, row in board.rows for p in row for name in p.metrics
    }
    rest = [row for row in METRICS if row.name not in shown and row.name != "warmroute_build_info"]
    folded = [Panel(_title(row), [row.name.removeprefix("warmroute_")], row.labels) for row in rest]
    boards = (Dashboard(FLEET.uid, FLEET.title, FLEET.rows, folded), REUSE)
    return {f"{board.uid}.json": json.dumps(_board(board), indent=1) + "\n" for board in boards}


def expressions() -> list[str]:
    """Return every expression of all dashboards."""
    boards = [json.loads(text) for text in dashboards().values()]
    panels = [panel for board in boards for panel in board["panels"]]
    panels += [below for panel in panels for below in panel.get("panels", [])]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def _row(name: str) -> MetricSpec:
    return spec(f"warmroute_{name}")


def _title(row: MetricSpec) -> str:
    return row.name.removeprefix("warmroute_").removesuffix("_total").replace("_", " ").capitalize()


def _queries(row: MetricSpec, by: Sequence[str]) -> list[tuple[str, str]]:
    missing = set(by) - set(row.labels)
    if missing:
        raise ValueError(f"{row.name} has no label {', '.join(sorted(missing))}")
    legend = " ".join(f"{{{{{label}}}}}" for label in by) or _title(row).lower()
    if row.type == "histogram":
        grouped = ", ".join(["le", *by])
        rate = f"rate({row.name}_bucket{SELECT}[$__rate_interval])"
        return [
            (
                f"histogram_quantile({share}, sum by ({grouped}) ({rate}))",
                f"p{share * 100:g}" + (f" {legend}" if by else ""),
            )
            for share in QUANTILES
        ]
    grouped = f" by ({', '.join(by)}) " if by else ""
    if row.type == "counter":
        return [(f"sum{grouped}(rate({row.name}{SELECT}[$__rate_interval]))", legend)]
    return [(f"{row.together}{grouped}({row.name}{SELECT})", legend)]


def _unit(panel: Panel) -> str:
    if panel.unit:
        return panel.unit
    row = _row(panel.metrics[0])
    if row.type == "counter":
        return "reqps" if "requests" in row.name else "short"
    endings = {"_seconds": "s", "_share": "percentunit", "_bytes": "bytes"}
    return next((unit for ending, unit in endings.items() if row.name.endswith(ending)), "short")


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": legend, "datasource": _SOURCE}
        for place, (expr, legend) in enumerate(panel.queries())
    ]
    custom: dict[str, Any] = {"fillOpacity": 60 if panel.stacked else 8, "lineWidth": 1, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults: dict[str, Any] = {"unit": _unit(panel), "min": 0, "custom": custom}
    if panel.most is not None:
        defaults["max"] = panel.most
    if _row(panel.metrics[0]).buckets[:1] < (0,) and _row(panel.metrics[0]).buckets:
        del defaults["min"]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": " ".join(dict.fromkeys(_row(name).meaning for name in panel.metrics)),
        "datasource": _SOURCE,
        "gridPos": {"h": HEIGHT, "w": panel.width, "x": x, "y": y},
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
        if panel.kind == "timeseries"
        else {},
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _placed(panels: Iterable[Panel], first: int, y: int) -> tuple[list[dict[str, Any]], int]:
    """Lay panels out from left to right; return them and the line below."""
    x, placed = 0, []
    for number, panel in enumerate(panels, start=first):
        if x + panel.width > WIDTH:
            x, y = 0, y + HEIGHT
        placed.append(_panel(panel, number, x, y))
        x += panel.width
    return placed, y + HEIGHT


def _board(board: Dashboard) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y, number = 0, 1
    rows = [(title, row, False) for title, row in board.rows]
    if board.folded:
        rows.append(("Everything else", board.folded, True))
    for title, row, is_folded in rows:
        head = {"id": number, "type": "row", "title": title, "collapsed": is_folded, "panels": []}
        head["gridPos"] = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        placed, y = _placed(row, number + 1, y + 1)
        number += 1 + len(placed)
        panels.append({**head, "panels": placed} if is_folded else head)
        panels += [] if is_folded else placed
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["warmroute"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    def ask(name: str, of: str) -> dict[str, Any]:
        return {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values({of}, {name})", "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        ask("job", "warmroute_build_info"),
        ask("instance", 'warmroute_build_info{job=~"$job"}'),
    ]


def main() -> int:
    """Write them to the folder that is given."""
    for name, text in dashboards().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
