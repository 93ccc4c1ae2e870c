"""The reuse ledger and each replica's traffic as metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from router.fleet.fleet import Fleet
from router.telemetry.metrics import Metrics
from router.telemetry.recorder import Recorder
from router.telemetry.replica_traffic import Traffic
from router.telemetry.reuse_ledger import ReuseLedger, infinite_cache, tokens_of
from router.telemetry.table import spec

_REPLICA_STAGES = ("prompt", "captured", "delivered", "unobserved")


def register_series(metrics: Metrics, recorder: Recorder, fleet: Fleet) -> None:
    """Have all of this exposed."""
    metrics.register(LedgerSeries(recorder.ledger), counts=True)
    metrics.register(InfiniteCacheSeries(recorder.ledger))
    metrics.register(TrafficSeries(recorder.traffic, fleet))


class LedgerSeries(Collector):
    """Collector of what was lost, by model, tenant and reason."""

    def __init__(self, ledger: ReuseLedger) -> None:
        self._ledger = ledger

    def describe(self) -> list[Metric]:
        """Nothing ahead of a scrape: the table holds the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the table's rows."""
        stages = _counter("warmroute_ledger_tokens_total")
        lost = _counter("warmroute_lost_tokens_total")
        for (model, tenant), account in self._ledger.accounts.items():
            by_stage, by_reason = tokens_of(account)
            for stage, tokens in by_stage.items():
                stages.add_metric([model, tenant or "", stage], tokens)
            for reason, tokens in by_reason.items():
                lost.add_metric([model, tenant or "", reason], tokens)
        yield from (stages, lost)


class InfiniteCacheSeries(Collector):
    """Collector of what a cache without end would have hit."""

    def __init__(self, ledger: ReuseLedger) -> None:
        self._ledger = ledger

    def describe(self) -> list[Metric]:
        """Nothing ahead of a scrape: the table holds the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the table's rows."""
        hits, error = _gauge("warmroute_infinite_cache_hit_tokens"), _gauge("warmroute_infinite_cache_error_tokens")
        for key, account in self._ledger.accounts.items():
            labels, estimate = [key[0], key[1] or ""], infinite_cache({key: account})
            hits.add_metric(labels, estimate["hit_tokens"])
            error.add_metric(labels, estimate["standard_error_tokens"])
        yield from (hits, error)


class TrafficSeries(Collector):
    """Collector of what replicas did; those that left take their series along."""

    def __init__(self, traffic: Traffic, fleet: Fleet) -> None:
        self._traffic = traffic
        self._fleet = fleet

    def describe(self) -> list[Metric]:
        """Nothing ahead of a scrape: the table holds the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the table's rows."""
        self._traffic.keep(self._fleet.replicas)
        ended = _counter("warmroute_replica_ended_requests_total")
        tokens = _counter("warmroute_replica_reuse_tokens_total")
        row = spec("warmroute_replica_ttft_seconds")
        ttft = HistogramMetricFamily(row.name, row.meaning, labels=row.labels)
        bounds = [*map(floatToGoString, row.buckets), "+Inf"]
        for replica_id, found in self._traffic.replicas.items():
            for result, count in (("good", found.good), ("failed", found.failed), ("aborted", found.aborted)):
                ended.add_metric([replica_id, result], count)
            values = (found.prompt_tokens, found.captured_tokens, found.delivered_tokens, found.unobserved_tokens)
            for stage, value in zip(_REPLICA_STAGES, values, strict=True):
                tokens.add_metric([replica_id, stage], value)
            ttft.add_metric([replica_id], found.ttft_s.buckets(bounds), found.ttft_s.total)
        yield from (ended, tokens, ttft)


def _counter(name: str) -> CounterMetricFamily:
    row = spec(name)
    return CounterMetricFamily(row.name.removesuffix("_total"), row.meaning, labels=row.labels)


def _gauge(name: str) -> GaugeMetricFamily:
    row = spec(name)
    return GaugeMetricFamily(row.name, row.meaning, labels=row.labels)
