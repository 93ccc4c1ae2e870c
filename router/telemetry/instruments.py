"""Instruments that cost a tenth of a microsecond to count with: plain numbers, made into metric families at a scrape.

prometheus-client's own take a lock, check and look up for each count, which adds up to a tenth of a request's time
here. All counting is done on one thread, the loop's; what it exposes is still written by prometheus-client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from router.telemetry.table import MetricSpec


class Count:
    """A counter's or gauge's series: add to `value`, or set it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Distribution:
    """A histogram's series.

    Args:
        bounds: Upper bounds of its buckets, rising; one without a bound follows by itself.
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.exemplars: dict[int, Exemplar] = {}
        """By place of a bucket: the last traced request that fell into it."""
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a bucket holds what is at most its bound."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def traced(self, value: float, trace_id: str, at_unix_s: float) -> None:
        """A value that was counted belongs to a trace: it is shown as its bucket's example."""
        self.exemplars[bisect_left(self.bounds, value)] = Exemplar({"trace_id": trace_id}, value, at_unix_s)

    def buckets(self, names: Sequence[str]) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        """Return the buckets as families take them; `names` are of their bounds."""
        exemplars = self.exemplars
        cumulative = zip(names, accumulate(self.counts), strict=True)
        return [
            (name, count, exemplars[place]) if place in exemplars else (name, count)
            for place, (name, count) in enumerate(cumulative)
        ]


class Instruments:
    """All series of the table's rows that are counted here (those read at scrape have collectors of their own).

    A registry takes it for a collector by its methods. It must not have the library's class for a base: a compiled
    class whose base the compiler can't see crashes the process.
    """

    def __init__(self, rows: Iterable[MetricSpec]) -> None:
        self._rows = {row.name: row for row in rows if not row.at_scrape}
        self._counts: dict[str, dict[tuple[str, ...], Count]] = {}
        self._distributions: dict[str, dict[tuple[str, ...], Distribution]] = {}
        for row in self._rows.values():
            (self._distributions if row.type == "histogram" else self._counts)[row.name] = {}
            if not row.labels:
                (self.distribution if row.type == "histogram" else self.count)(row.name)

    def count(self, name: str, *labels: str) -> Count:
        """Return a counter's or gauge's series, made at its first use; keep it to count quickly."""
        series = self._counts[name]
        found = series.get(labels)
        if found is None:
            self._check(name, labels)
            found = series[labels] = Count()
        return found

    def distribution(self, name: str, *labels: str) -> Distribution:
        """Return a histogram's series, made at its first use; keep it to count quickly."""
        series = self._distributions[name]
        found = series.get(labels)
        if found is None:
            self._check(name, labels)
            found = series[labels] = Distribution(self._rows[name].buckets)
        return found

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Return a counter's or gauge's values by labels."""
        return {labels: found.value for labels, found in self._counts[name].items()}

    def counts(self, name: str) -> list[int]:
        """Return how many values lie in each bucket of a histogram, all series together; the last has no bound."""
        series = list(self._distributions[name].values())
        return [sum(found.counts[place] for found in series) for place in range(len(self._rows[name].buckets) + 1)]

    def clear(self, name: str) -> None:
        """Forget all series of a counter or gauge."""
        self._counts[name].clear()

    def describe(self) -> list[Metric]:
        """Nothing ahead of a scrape: the table holds the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families, in the table's order."""
        for row in self._rows.values():
            if row.type == "histogram":
                yield self._histogram(row)
                continue
            kind = CounterMetricFamily if row.type == "counter" else GaugeMetricFamily
            family = kind(row.name, row.meaning, labels=row.labels)
            for labels, count in list(self._counts[row.name].items()):
                family.add_metric(labels, count.value)
            yield family

    def _histogram(self, row: MetricSpec) -> Metric:
        family = HistogramMetricFamily(row.name, row.meaning, labels=row.labels)
        names = [*map(floatToGoString, row.buckets), "+Inf"]
        for labels, found in list(self._distributions[row.name].items()):
            family.add_metric(labels, found.buckets(names), found.total)
        return family

    def _check(self, name: str, labels: tuple[str, ...]) -> None:
        if len(labels) != len(self._rows[name].labels):
            raise ValueError(f"{name} has the labels {self._rows[name].labels}")
