"""One run of a report: traffic under one policy, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from loadtest.driver.generator import Generator
from loadtest.driver.records import Record
from loadtest.driver.scraping import Scrape, grown
from loadtest.report.baseline import Stored
from loadtest.report.measures import (
    SPECS,
    Measure,
    by_kind,
    by_model,
    by_replica,
    by_stage,
    by_tenant,
    errors_by_cause,
    measure,
    time_line,
)
from loadtest.report.scraped import scraped, scraped_line
from loadtest.workloads.schedule import Stage


@dataclass(frozen=True)
class Run:
    """What was measured.

    Attributes:
        workload: Which traffic.
        policy: Under which placement policy; the target's address where it is not ours to choose.
        records: Without the warm-up.
        generator: How the generator did.
        block_size: Tokens of a cached block.
        stages: Of arrivals; empty for closed loops and traces.
        replicas: How many there are, if that is known.
        ledger: The router's reuse ledger of this run, `prompt` and its parts in tokens; empty where there is none.
        events: (second, what happened), for the time line.
        scrapes: What engines and router told meanwhile.
    """

    workload: str
    policy: str
    records: Sequence[Record]
    generator: Generator
    block_size: int
    stages: Sequence[Stage] = ()
    replicas: int | None = None
    ledger: Mapping[str, float] = field(default_factory=dict)
    events: Sequence[tuple[float, str]] = ()
    scrapes: Sequence[Scrape] = ()

    @property
    def name(self) -> str:
        """What baselines know it by."""
        return f"{self.workload}/{self.policy}"

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """All measures."""
        measures = measure(self.records, self.block_size, self.replicas)
        if measures["spread"].value is None and self.replica_requests:
            counts = self.replica_requests.values()
            mean = sum(counts) / (self.replicas or len(counts))
            told = Measure(max(counts) / mean if mean else None, samples=int(sum(counts)))
            return measures | {"spread": told}
        return measures

    @cached_property
    def kinds(self) -> Mapping[str, Mapping[str, Any]]:
        """Figures for each kind of session."""
        return by_kind(self.records, self.block_size)

    @cached_property
    def tenants(self) -> Mapping[str, Mapping[str, Any]]:
        """Figures for each tenant, where there are several."""
        found = by_tenant(self.records, self.block_size)
        return found if len(found) > 1 else {}

    @cached_property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """Figures for the model and each adapter, where there are several."""
        found = by_model(self.records, self.block_size)
        return found if len(found) > 1 else {}

    @cached_property
    def stages_figures(self) -> Mapping[str, Mapping[str, Any]]:
        """Figures for each stage of arrivals."""
        return by_stage(self.records, self.block_size)

    @cached_property
    def time_line(self) -> Sequence[Mapping[str, Any]]:
        """Figures of equal spans."""
        return time_line(self.records)

    @cached_property
    def replica_requests(self) -> Mapping[str, float]:
        """Requests by replica, as the router said; else as the engines counted them."""
        told: Mapping[str, float] = by_replica(self.records)
        return told or grown(self.scrapes, "answered")

    @cached_property
    def scraped(self) -> Mapping[str, float]:
        """What the engines told, added up."""
        return scraped(self.scrapes)

    @property
    def stored(self) -> Stored:
        """What a comparison needs."""
        return Stored(self.measures, self.generator.was_bottleneck)

    def row(self) -> list[tuple[str, Measure]]:
        """Return the measures in order."""
        return [(name, self.measures[name]) for name in SPECS]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "workload": self.workload,
            "policy": self.policy,
            "requests": len(self.records),
            "sessions": len({record.session for record in self.records}),
            "measures": {name: measure.to_dict() for name, measure in self.measures.items()},
            "errors": errors_by_cause(self.records),
            "generator": self.generator.to_dict(),
            "by_kind": self.kinds,
            "by_stage": self.stages_figures,
            "by_tenant": self.tenants,
            "by_model": self.models,
            "by_replica": dict(self.replica_requests),
            "scraped": dict(self.scraped),
            "scraped_line": scraped_line(self.scrapes),
            "ledger": dict(self.ledger),
            "time_line": list(self.time_line),
            "events": [{"at_s": at_s, "event": event} for at_s, event in self.events],
        }


def ledger_parts(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, float]:
    """Return where a run's prompt tokens went, from two answers of `GET /admin/ledger`: parts whose sum they are."""
    if not after:
        return {}
    parts: dict[str, float] = {}
    for section, names in (("tokens", ("delivered", "unobserved")), ("lost_tokens", None)):
        now = after.get("total", {}).get(section, {})
        then = (before or {}).get("total", {}).get(section, {})
        for name in names or now:
            grown = now.get(name, 0) - then.get(name, 0)
            if grown > 0:
                parts[name if names else f"lost: {name.replace('_', ' ')}"] = grown
    return parts
