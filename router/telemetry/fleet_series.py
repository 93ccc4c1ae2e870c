"""Per-replica series, read from the fleet at each scrape: a replica that left takes its series along."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.fleet.fleet import Fleet
from router.fleet.replica import Replica, ReplicaState
from router.fleet.vouching import Vouching, VouchState
from router.index.prefix_index import PrefixIndex
from router.telemetry.table import spec


class FleetSeries(Collector):
    """Collector of what the fleet and the index are now.

    Args:
        clock: The fleet's clock, in seconds.
        vouching: For which models predictions fail.
    """

    def __init__(
        self, fleet: Fleet, index: PrefixIndex, clock: Callable[[], float], vouching: Vouching | None = None
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._clock = clock
        self._vouching = vouching or Vouching()

    def describe(self) -> list[Metric]:
        """Nothing ahead of a scrape: the table holds the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the table's rows that are read at scrape."""
        now_s = self._clock()
        replicas = list(self._fleet.replicas.values())
        states = {replica.replica_id: replica.state(now_s) for replica in replicas}
        count = _family("warmroute_replicas")
        for state in ReplicaState:
            count.add_metric([state.value], sum(found is state for found in states.values()))
        yield count
        yield self._trust(replicas)
        state_family = _family("warmroute_replica_state")
        for replica_id, state in states.items():
            state_family.add_metric([replica_id, state.value], 1)
        yield state_family
        yield _per_replica(
            "warmroute_replica_requests", replicas, lambda replica: sum(u.in_flight.requests for u in replica.units)
        )
        yield _per_replica(
            "warmroute_replica_backlog_tokens",
            replicas,
            lambda replica: sum(u.in_flight.backlog_tokens(now_s) for u in replica.units),
        )
        yield _per_replica(
            "warmroute_index_blocks",
            replicas,
            lambda replica: sum(self._index.blocks_of(u.slot) for u in replica.units),
        )
        yield _per_replica(
            "warmroute_replica_foreign_requests",
            replicas,
            lambda replica: sum(u.foreign_requests for u in replica.units),
        )
        yield _queues(
            self._fleet.model_names(), [item for item in replicas if states[item.replica_id] == "ready"], now_s
        )
        yield _ages(replicas, now_s)
        yield from _engine_figures(replicas)
        distinct = _family("warmroute_index_distinct_blocks")
        distinct.add_metric([], self._index.total_blocks)
        yield distinct

    def _trust(self, replicas: list[Replica]) -> GaugeMetricFamily:
        family, vouching = _family("warmroute_replica_trust"), self._vouching
        for replica in replicas:
            by_units = {unit.trust.value for unit in replica.units}
            states = {model: set(by_units) for model in replica.models}
            for unit in replica.units:
                for record in vouching.records_of(unit) if vouching.has_doubts(unit) else ():
                    if record.state is VouchState.DISTRUSTED:
                        found = states.setdefault(record.model, set(by_units))
                        found |= {vouching.trust(unit, record).value, record.state.value}
            for model, found in states.items():
                for state in sorted(found):
                    family.add_metric([replica.replica_id, model, state], 1)
        return family


def _queues(models: list[str], ready: list[Replica], now_s: float) -> GaugeMetricFamily:
    family = _family("warmroute_model_queue_seconds")
    for model in models:
        waits = [unit.queue_s(now_s) for replica in ready if model in replica.models for unit in replica.units]
        family.add_metric([model], sum(waits) / len(waits) if waits else 0.0)
    return family


def _ages(replicas: list[Replica], now_s: float) -> Metric:
    family = _family("warmroute_index_age_seconds")
    for replica in replicas:
        known = [unit.blocks_as_of_s for unit in replica.units if unit.blocks_as_of_s is not None]
        if known:  # of replicas without an agent nothing is heard
            family.add_metric([replica.replica_id], now_s - min(known))
    return family


def _engine_figures(replicas: list[Replica]) -> Iterator[Metric]:
    loads = {r.replica_id: [u.load for u in r.units if u.load is not None] for r in replicas}
    running = _family("warmroute_replica_running_requests")
    waiting = _family("warmroute_replica_waiting_requests")
    usage = _family("warmroute_replica_kv_usage_share")
    for replica_id, known in loads.items():
        if known:  # unknown is no series; it is never zero
            running.add_metric([replica_id], sum(load.running for load in known))
            waiting.add_metric([replica_id], sum(load.waiting for load in known))
            usage.add_metric([replica_id], sum(load.kv_usage for load in known) / len(known))
    yield from (running, waiting, usage)
    yield from _cache_counts(replicas)


def _cache_counts(replicas: list[Replica]) -> Iterator[Metric]:
    row, share = spec("warmroute_replica_engine_cache_tokens_total"), _family("warmroute_replica_engine_hit_share")
    tokens = CounterMetricFamily(row.name, row.meaning, labels=row.labels)
    for replica in replicas:
        counts = replica.cache_counts()
        if counts is not None:
            tokens.add_metric([replica.replica_id, "query"], counts.queries)
            tokens.add_metric([replica.replica_id, "hit"], counts.hits)
            if counts.lately is not None:
                share.add_metric([replica.replica_id], counts.lately)
    yield from (tokens, share)


def _per_replica(name: str, replicas: list[Replica], value: Callable[[Replica], float]) -> GaugeMetricFamily:
    family = _family(name)
    for replica in replicas:
        family.add_metric([replica.replica_id], value(replica))
    return family


def _family(name: str) -> GaugeMetricFamily:
    row = spec(name)
    return GaugeMetricFamily(row.name, row.meaning, labels=row.labels)
