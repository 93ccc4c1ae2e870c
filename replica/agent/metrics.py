"""Every metric of the agent, in one table: what is not here does not exist. docs/metrics.md is generated from it.

Names begin with `warmroute_agent_`, units end a name, counters end in `_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from replica.agent.unit import UnitState

_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
Values = Iterable[tuple[tuple[str, ...], float]]
"""(values of the labels behind `unit`, value)."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: Without the prefix, and without `_total`.
        labels: Behind `unit`, which nearly all have.
        of_unit: Reads it from a unit when asked for; None: tasks write to it.
        is_of_units: Whether it has the label `unit`.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    of_unit: Callable[[UnitState], Values] | None = None
    is_of_units: bool = True

    @property
    def exposed_name(self) -> str:
        """The name that Prometheus sees."""
        return f"warmroute_agent_{self.name}" + ("_total" if self.type == "counter" else "")

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Every label, in order."""
        return (("unit",) if self.is_of_units else ()) + self.labels


def _one(value: float) -> Values:
    return [((), value)]


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "events",
        "counter",
        "Events read, by kind.",
        ("kind",),
        lambda u: [((k,), n) for k, n in u.tally.events.items()],
    ),
    MetricSpec(
        "skipped",
        "counter",
        "Events, fields and frames left out, by reason.",
        ("reason",),
        lambda u: [((reason,), count) for reason, count in u.tally.skipped.items()],
    ),
    MetricSpec("duplicate_batches", "counter", "Batches read twice.", (), lambda u: _one(u.tally.duplicates)),
    MetricSpec(
        "late_batches",
        "counter",
        "Batches of a life of the engine that had ended, dropped.",
        (),
        lambda u: _one(u.tally.late),
    ),
    MetricSpec("gaps", "counter", "Gaps in the engine's batches.", (), lambda u: _one(u.tally.gaps)),
    MetricSpec("replays", "counter", "Replays asked for, by outcome.", ("outcome",)),
    MetricSpec("engine_restarts", "counter", "New lives of the engine.", (), lambda u: _one(u.tally.restarts)),
    MetricSpec("cache_unknown", "counter", "Times the cache became unknown.", (), lambda u: _one(u.tally.unknown)),
    MetricSpec(
        "head_lost",
        "gauge",
        "1 where blocks from before the first batch that was read may be missing.",
        (),
        lambda u: _one(u.head_lost),
    ),
    MetricSpec(
        "restored", "counter", "Times an earlier agent's state was taken over.", (), lambda u: _one(u.tally.restored)
    ),
    MetricSpec("blocks", "gauge", "Live blocks that routers are told of.", (), lambda u: _one(len(u.copies))),
    MetricSpec(
        "unnamed_blocks",
        "counter",
        "Blocks stored that could not be named by their tokens (trust MAPPED), and are not told.",
        (),
        lambda u: _one(u.mapped.unnamed if u.mapped is not None else 0),
    ),
    MetricSpec(
        "clamped_hashes",
        "counter",
        "Counts of copies set back to one at a tier's bound.",
        (),
        lambda u: _one(u.copies.clamped),
    ),
    MetricSpec(
        "disbelieved_blocks", "counter", "Blocks given up since a router saw that the engine did not find them."
    ),
    MetricSpec(
        "scheme_proven", "gauge", "1 where the hash scheme is proven.", (), lambda u: _one(u.proof.state == "proven")
    ),
    MetricSpec(
        "scheme_conflicts",
        "counter",
        "Times that events contradicted what was told: another block size, or hashes of no known scheme.",
        ("kind",),
    ),
    MetricSpec("epochs", "counter", "Epochs begun."),
    MetricSpec("published_blocks", "counter", "Block changes put into Redis."),
    MetricSpec("dropped_blocks", "counter", "Block changes dropped for a snapshot while Redis was away."),
    MetricSpec("snapshots", "counter", "Snapshots written."),
    MetricSpec("redis_errors", "counter", "Failed steps in Redis."),
    MetricSpec("redis_up", "gauge", "1 while Redis holds the unit's epoch and the last step worked."),
    MetricSpec("scrape_errors", "counter", "Failed scrapes of the engine.", is_of_units=False),
    MetricSpec("engine_up", "gauge", "1 while the engine answers.", is_of_units=False),
    MetricSpec("draining", "gauge", "1 while routers are told to send nothing new.", is_of_units=False),
    MetricSpec("lag_seconds", "histogram", "From a frame that was read to Redis, coalescing included."),
)


def metrics_table() -> str:
    """Return the table for docs/metrics.md, in Markdown."""
    lines = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    for spec in METRICS:
        labels = ", ".join(f"`{label}`" for label in spec.all_labels)
        lines.append(f"| `{spec.exposed_name}` | {spec.type} | {labels} | {spec.meaning} |")
    return "\n".join(lines)


class AgentMetrics:
    """Counters that tasks write to, and what is read from the units when asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        written = {spec.name: spec for spec in METRICS if spec.of_unit is None}

        def counter(name: str) -> Counter:
            spec = written[name]
            return Counter(f"warmroute_agent_{name}", spec.meaning, spec.all_labels, registry=self.registry)

        def gauge(name: str) -> Gauge:
            spec = written[name]
            return Gauge(spec.exposed_name, spec.meaning, spec.all_labels, registry=self.registry)

        self.replays, self.epochs = counter("replays"), counter("epochs")
        self.published, self.dropped = counter("published_blocks"), counter("dropped_blocks")
        self.disbelieved, self.snapshots = counter("disbelieved_blocks"), counter("snapshots")
        self.redis_errors, self.scrape_errors = counter("redis_errors"), counter("scrape_errors")
        self.conflicts = counter("scheme_conflicts")
        self.redis_up, self.engine_up, self.draining = gauge("redis_up"), gauge("engine_up"), gauge("draining")
        lag = written["lag_seconds"]
        self.lag = Histogram(
            lag.exposed_name, lag.meaning, lag.all_labels, buckets=_LAG_BUCKETS_S, registry=self.registry
        )
        self._units = _OfUnits()
        self.registry.register(self._units)

    def render(self, units: list[UnitState]) -> bytes:
        """Return the text that Prometheus reads."""
        self._units.units = units
        return generate_latest(self.registry)


class _OfUnits(Collector):
    """Reads units when Prometheus asks: a unit that is no more has no series."""

    def __init__(self) -> None:
        self.units: list[UnitState] = []

    def collect(self) -> Iterator[Metric]:
        for spec in METRICS:
            if spec.of_unit is None:
                continue
            kind = CounterMetricFamily if spec.type == "counter" else GaugeMetricFamily
            family = kind(f"warmroute_agent_{spec.name}", spec.meaning, labels=spec.all_labels)
            for unit in self.units:
                for labels, value in spec.of_unit(unit):
                    family.add_metric([unit.unit_id, *labels], float(value))
            yield family
