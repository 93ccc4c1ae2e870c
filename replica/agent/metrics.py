"""The agent's own metrics, all in one place."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from replica.agent.unit import UnitState

_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class AgentMetrics:
    """Counters that tasks write to, and gauges read from the units when asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        unit = ["unit"]
        self._events = Gauge("warmroute_agent_events", "Events read, by kind", [*unit, "kind"], registry=r)
        self._skipped = Gauge(
            "warmroute_agent_skipped", "Events, fields and frames left out, by reason", [*unit, "reason"], registry=r
        )
        self._duplicates = Gauge("warmroute_agent_duplicate_batches", "Batches read twice", unit, registry=r)
        self._gaps = Gauge("warmroute_agent_gaps", "Gaps in the engine's batches", unit, registry=r)
        self._restarts = Gauge("warmroute_agent_engine_restarts", "New lives of the engine", unit, registry=r)
        self._unknown = Gauge("warmroute_agent_cache_unknown", "Times the cache became unknown", unit, registry=r)
        self._clamped = Gauge(
            "warmroute_agent_clamped_hashes",
            "Counts of copies set back to one at a tier's bound",
            unit,
            registry=r,
        )
        self._blocks = Gauge("warmroute_agent_blocks", "Live blocks", unit, registry=r)
        self._proven = Gauge("warmroute_agent_scheme_proven", "1 where the hash scheme is proven", unit, registry=r)
        self.replays = Counter("warmroute_agent_replays", "Replays by outcome", [*unit, "outcome"], registry=r)
        self.epochs = Counter("warmroute_agent_epochs", "Epochs begun", unit, registry=r)
        self.published = Counter("warmroute_agent_published_blocks", "Block changes put into Redis", unit, registry=r)
        self.dropped = Counter(
            "warmroute_agent_dropped_blocks",
            "Block changes dropped for a snapshot while Redis was away",
            unit,
            registry=r,
        )
        self.disbelieved = Counter(
            "warmroute_agent_disbelieved_blocks",
            "Blocks given up since a router saw that the engine did not find them",
            unit,
            registry=r,
        )
        self.snapshots = Counter("warmroute_agent_snapshots", "Snapshots written", unit, registry=r)
        self.redis_errors = Counter("warmroute_agent_redis_errors", "Failed steps in Redis", unit, registry=r)
        self.scrape_errors = Counter("warmroute_agent_scrape_errors", "Failed scrapes of the engine", registry=r)
        self.conflicts = Counter(
            "warmroute_agent_scheme_conflicts",
            "Times that events contradicted what was told: another block size, or hashes of no known scheme",
            [*unit, "kind"],
            registry=r,
        )
        self.lag = Histogram(
            "warmroute_agent_lag_seconds", "From frame read to Redis", unit, buckets=_LAG_BUCKETS_S, registry=r
        )

    def render(self, units: list[UnitState]) -> bytes:
        """Return the text that Prometheus reads."""
        for unit in units:
            name, tally = unit.unit_id, unit.tally
            for kind, count in tally.events.items():
                self._events.labels(name, kind).set(count)
            for reason, count in tally.skipped.items():
                self._skipped.labels(name, reason).set(count)
            self._duplicates.labels(name).set(tally.duplicates)
            self._gaps.labels(name).set(tally.gaps)
            self._restarts.labels(name).set(tally.restarts)
            self._unknown.labels(name).set(tally.unknown)
            self._clamped.labels(name).set(unit.copies.clamped)
            self._blocks.labels(name).set(len(unit.copies))
            self._proven.labels(name).set(unit.proof.state == "proven")
        return generate_latest(self.registry)
