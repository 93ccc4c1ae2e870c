"""The reuse ledger of several workers is that of one that did all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.admin.reuse_views import engine_views, traffic_view
from router.fleet.cache_counts import CacheCounts
from router.telemetry.replica_traffic import Traffic
from router.telemetry.reuse_ledger import Counted, ReuseLedger
from router.workers.merging_reuse import ledgers, traffic
from tests.telemetry.placed import SmallFleet, outcome, prompt


def view(ledger: ReuseLedger, traffic_of: Traffic, fleet: SmallFleet) -> dict[str, Any]:
    """As a worker answers its supervisor, through JSON."""
    replicas = list(fleet.fleet.replicas.values())
    told = {**ledger.to_dict(sketches=True), "replicas": engine_views(traffic_of, replicas)}
    return dict(json.loads(json.dumps(told)))


def test_two_workers_ledgers_are_one() -> None:
    """Half of the requests each, with prompts that both saw: sums and the infinite cache as if one had counted all."""
    fleet, whole, halves = SmallFleet(), ReuseLedger(), (ReuseLedger(), ReuseLedger())
    for number in range(60):
        tenant = "a" if number % 3 else "b"
        for ledger in (whole, halves[number % 2]):
            ledger.count("tiny", tenant, fleet.place(prompt(161, number % 7)), outcome(0, 161))
    merged = ledgers([view(each, Traffic(), fleet) for each in halves])
    alone = whole.to_dict()
    assert merged["total"]["requests"] == 60
    assert merged["total"]["infinite_cache"] == alone["total"]["infinite_cache"]
    assert merged["total"]["tokens"] == alone["total"]["tokens"]
    assert sum(merged["total"]["lost_tokens"].values()) == sum(alone["total"]["lost_tokens"].values())
    by_key = {(item["model"], item["tenant"]): item for item in merged["accounts"]}
    for item in alone["accounts"]:
        found = by_key[(item["model"], item["tenant"])]
        assert found["infinite_cache"] == item["infinite_cache"]
        assert "sketch" not in found


def test_replicas_figures_are_added_and_the_engine_s_are_not() -> None:
    """All workers hear the same engine: what it counted is what one of them heard longest."""
    fleet, one, other = SmallFleet(1), Traffic(), Traffic()
    for traffic_of, delivered in ((one, 100), (other, 60)):
        traffic_of.ended("r0", outcome(delivered, 200), Counted(200, 100, 100, delivered), streamed=True)
    counts = fleet.fleet.units["r0/0"].cache_counts
    counts.told(0, 0, 0.0)
    counts.told(500, 300, 1.0)
    merged = ledgers([view(ReuseLedger(), each, fleet) for each in (one, other)])
    [replica] = merged["replicas"]
    of_router = replica["router"]
    assert (of_router["good"], of_router["delivered_tokens"], of_router["hit_share"]) == (2, 160, 0.4)
    assert replica["router"]["ttft_p50_s"] == pytest.approx(0.075, abs=0.03)
    assert (replica["engine"]["hit_tokens"], replica["hidden_hit_tokens"]) == (300, 140)
    assert traffic(None, traffic_view(None)) is None
    assert CacheCounts.together([]) is None
