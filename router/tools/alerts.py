"""Prometheus' rules: what is worth waking somebody, as one table.

    python -m router.tools.alerts helm/files        # `make docs`

`make test-ops` has promtool check them, and run tests/ops/*.yaml against them.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from router.telemetry.table import METRICS

FILE = "alerts.yaml"
HIT_SHARE = "warmroute:hit_share:rate1h"
RECORDED = {
    HIT_SHARE: "sum by (job) (rate(warmroute_reuse_tokens_total{stage='delivered'}[1h])) "
    "/ sum by (job) (rate(warmroute_prompt_tokens_total[1h]))",
    "warmroute:failed_share:rate5m": "sum by (job) (rate(warmroute_requests_total{status=~'5xx|none'}[5m])) "
    "/ sum by (job) (rate(warmroute_requests_total[5m]))",
}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        name: In CamelCase, after `Warmroute`.
        expr: What must hold.
        for_: So long.
        severity: `critical`: requests fail or soon will; `warning`: they are served, but less well.
        summary: What is wrong, in a line.
        remedy: What to do.
    """

    name: str
    expr: str
    for_: str
    severity: str
    summary: str
    remedy: str


ALERTS: tuple[Alert, ...] = (
    Alert(
        "NoReplica",
        "sum by (job, instance) (warmroute_replicas{state='ready'}) == 0",
        "1m",
        "critical",
        "{{ $labels.instance }} has no replica that can take a request",
        "Look at /readyz and at the engines; `warmroute doctor --router URL` tells what is wrong with each.",
    ),
    Alert(
        "ReplicaOut",
        "max by (job, replica, state) (warmroute_replica_state{state=~'down|ejected'}) > 0",
        "5m",
        "warning",
        "Replica {{ $labels.replica }} is {{ $labels.state }}",
        "Look at its engine's log; it comes back by itself. What it has cached is lost to the fleet meanwhile.",
    ),
    Alert(
        "IndexStale",
        "max by (job, replica) (warmroute_index_age_seconds) > 30",
        "2m",
        "warning",
        "Nothing was heard of {{ $labels.replica }}'s blocks for {{ $value | humanizeDuration }}",
        "Look at its agent's log and at Redis. Routing goes on with what was known: less warm, not wrong.",
    ),
    Alert(
        "FeedDown",
        "min by (job, instance, feed) (warmroute_feed_up) == 0",
        "2m",
        "warning",
        "{{ $labels.instance }} does not hear its {{ $labels.feed }} feed",
        "Look at Redis and the network between; the router freezes who is in the fleet and probes engines itself.",
    ),
    Alert(
        "TrustLost",
        "max by (job, replica, model) (warmroute_replica_trust{state='distrusted'}) > 0 or "
        "(max by (job, replica, model) (warmroute_replica_trust{state='exact'} offset 1h) "
        "unless on (job, replica, model) max by (job, replica, model) (warmroute_replica_trust{state='exact'})) "
        "and on (job, replica) max by (job, replica) (warmroute_replica_state{state='ready'})",
        "5m",
        "warning",
        "Blocks of {{ $labels.replica }} are no longer believed for {{ $labels.model }}",
        "See /admin/replicas for the reason: mostly another chat template, tokenizer or hash seed than the router's.",
    ),
    Alert(
        "HitRateFallen",
        f"{HIT_SHARE} < 0.7 * avg_over_time({HIT_SHARE}[7d:1h]) "
        "and on (job) sum by (job) (rate(warmroute_prompt_tokens_total[1h])) > 100",
        "30m",
        "warning",
        "The hit rate is {{ $value | humanizePercentage }}, under 70% of its week's mean",
        "The reuse dashboard tells where tokens are lost; `warmroute doctor --traffic --router URL` tells why.",
    ),
    Alert(
        "HotSpot",
        "sum by (job, replica) (warmroute_replica_requests) > on (job) group_left () "
        "(2 * avg by (job) (sum by (job, replica) (warmroute_replica_requests))) "
        "and sum by (job, replica) (warmroute_replica_requests) >= 8",
        "10m",
        "warning",
        "{{ $labels.replica }} has over twice the mean of requests in flight",
        "The dashboard's prefixes show what draws them; raise what load weighs (placement.weights), or add replicas.",
    ),
    Alert(
        "Errors",
        "warmroute:failed_share:rate5m > 0.05",
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of requests fail (5xx or no answer)",
        "warmroute_errors_total tells the router's own errors by code; the rest are the engines'.",
    ),
    Alert(
        "Queue",
        "sum by (job) (warmroute_queue_requests) > 0",
        "5m",
        "warning",
        "{{ $value }} requests wait for a replica with room",
        "Add replicas, or raise limits.max_in_flight where engines have room.",
    ),
    Alert(
        "ReloadFailed",
        "max by (job, instance) (warmroute_config_failed) > 0",
        "1m",
        "warning",
        "{{ $labels.instance }} can't load its configuration's file; the one before stays in force",
        "The log and /admin/config name everything that is wrong with it.",
    ),
    Alert(
        "RestartNeeded",
        "max by (job, instance) (warmroute_config_needs_restart) > 0",
        "1h",
        "warning",
        "{{ $labels.instance }} runs without changes that take a restart",
        "/admin/config names the keys; restart the router.",
    ),
)


def rules() -> str:
    """Return Prometheus' rule file, as YAML."""
    alerts = [
        {
            "alert": f"Warmroute{alert.name}",
            "expr": alert.expr.replace("'", '"'),
            "for": alert.for_,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.remedy},
        }
        for alert in ALERTS
    ]
    recorded = [{"record": name, "expr": expr.replace("'", '"')} for name, expr in RECORDED.items()]
    groups = [{"name": "warmroute.recorded", "rules": recorded}, {"name": "warmroute", "rules": alerts}]
    head = "# Written by router/tools/alerts.py (`make docs`).\n"
    return head + yaml.safe_dump({"groups": groups}, sort_keys=False, width=110)


def alerts_table() -> str:
    """Return a row for each alert, in Markdown."""
    lines = ["| alert | severity | when | what to do |", "|---|---|---|---|"]
    for alert in ALERTS:
        expr = alert.expr.replace("|", "\\|").replace("'", '"')
        lines.append(f"| `Warmroute{alert.name}` | {alert.severity} | `{expr}` for {alert.for_} | {alert.remedy} |")
    return "\n".join(lines)


def unknown_metrics(expr: str) -> set[str]:
    """Return names in an expression that begin with `warmroute_` and are in no row of the table."""
    known = {row.name for row in METRICS}
    known |= {f"{row.name}_bucket" for row in METRICS if row.type == "histogram"}
    return set(re.findall(r"\bwarmroute_\w+", expr)) - known


def main() -> int:
    """Write the file into the folder that is given."""
    (Path(sys.argv[1]) / FILE).write_text(rules(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
