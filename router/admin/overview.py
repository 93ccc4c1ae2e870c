"""All that an operator watches, in one answer: the dashboard and `warmroute top` show it. It adds up over workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router.admin.notable import notable, ranked
from router.admin.warnings import fleet_warnings, joined
from router.admin.window import MAX_DECISIONS, empty_window, windows
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica, Unit
from router.fleet.vouching import EXPLANATIONS, Vouching
from router.index.prefix_index import PrefixIndex
from router.telemetry.decisions import DecisionLog
from router.telemetry.totals import sum_of

_WORST_FIRST = ("approximate", "none", "mapped", "exact")
_OF_WINDOW = ("requests", "failed", "prompt_tokens", "cached_tokens")


def fleet_view(
    fleet: Fleet,
    index: PrefixIndex,
    vouching: Vouching,
    decisions: DecisionLog,
    now_s: float,
    now_unix_s: float,
) -> dict[str, Any]:
    """Return what changes from second to second, for JSON.

    Returns:
        `replicas`: a row each. `warnings`: what is wrong with them. `decisions`: `latest`, `slowest`, `surprising`.
        `index`: `blocks`, distinct ones.
    """
    latest = decisions.latest(MAX_DECISIONS)
    replica_of = {unit.unit_id: unit.replica.replica_id for unit in fleet.units.values()}
    recent = windows(latest, replica_of, now_unix_s)
    rows = [
        _row(replica, index, vouching, recent.get(replica.replica_id) or empty_window(), now_s)
        for replica in fleet.replicas.values()
    ]
    return {
        "replicas": rows,
        "warnings": fleet_warnings(rows),
        "decisions": notable(latest),
        "index": {"blocks": index.total_blocks},
    }


def _row(
    replica: Replica, index: PrefixIndex, vouching: Vouching, window: dict[str, Any], now_s: float
) -> dict[str, Any]:
    units = replica.units
    loads = [unit.load for unit in units if unit.load is not None]
    ages = [now_s - unit.blocks_as_of_s for unit in units if unit.blocks_as_of_s is not None]
    sizes = [unit.num_blocks for unit in units if unit.num_blocks is not None]
    least = min(units, key=lambda unit: _WORST_FIRST.index(unit.trust.value), default=None)
    return {
        "replica": replica.replica_id,
        "state": replica.state(now_s).value,
        "down_reason": replica.down_reason,
        "failures_in_a_row": replica.failures_in_a_row,
        "ejections": replica.ejections,
        "source": replica.source,
        "models": list(replica.models),
        "units": len(units),
        "trust": least.trust.value if least is not None else "none",
        "trust_reason": least.reason if least is not None else None,
        "doubts": [doubt for unit in units if vouching.has_doubts(unit) for doubt in _doubts(unit, vouching)],
        "running": sum(load.running for load in loads) if loads else None,
        "waiting": sum(load.waiting for load in loads) if loads else None,
        "kv_share": round(sum(load.kv_usage for load in loads) / len(loads), 4) if loads else None,
        "requests": sum(unit.in_flight.requests for unit in units),
        "backlog_tokens": round(sum(unit.in_flight.backlog_tokens(now_s) for unit in units), 1),
        "prefill_tokens_per_s": round(sum(unit.in_flight.prefill_tokens_per_s for unit in units), 1),
        "blocks": sum(index.blocks_of(unit.slot) for unit in units),
        "num_blocks": sum(sizes) if sizes else None,
        "index_age_s": round(max(ages), 2) if ages else None,
        "window": window,
    }


def _doubts(unit: Unit, vouching: Vouching) -> list[dict[str, str]]:
    return [
        {"model": record.model, "kind": record.kind, "explanation": EXPLANATIONS[record.reason]}
        for record in vouching.records_of(unit)
        if record.reason is not None
    ]


def merged_views(views: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several workers see as one: what each did adds up, what all know alike is the first one's.

    Args:
        views: As `fleet_view` gives them with `totals`, at least one.
    """
    first, *others = views
    rows = {row["replica"]: {**row, "window": {**row["window"]}} for row in first["replicas"]}
    totals = first["totals"]
    for other in others:
        totals = sum_of(totals, other["totals"])
        for theirs in other["replicas"]:
            if theirs["replica"] in rows:
                _add(rows[theirs["replica"]], theirs)
    decisions = [row for view in views for kind in view["decisions"].values() for row in kind]
    return {
        **first,
        "replicas": list(rows.values()),
        "warnings": joined([*fleet_warnings(list(rows.values()))]),
        "decisions": ranked(decisions),
        "totals": totals,
    }


def _add(row: dict[str, Any], theirs: Mapping[str, Any]) -> None:
    for key in ("requests", "backlog_tokens", "ejections"):
        row[key] = round(row[key] + theirs[key], 1)
    row["doubts"] = [*row["doubts"], *(doubt for doubt in theirs["doubts"] if doubt not in row["doubts"])]
    window = row["window"]
    for key in _OF_WINDOW:
        window[key] += theirs["window"][key]
    window["ttft"] = [mine + other for mine, other in zip(window["ttft"], theirs["window"]["ttft"], strict=True)]
