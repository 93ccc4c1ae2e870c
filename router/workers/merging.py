"""Metrics of many processes as one: counters and histograms add up, gauges as the table says.

A worker that dies takes nothing back: what it had counted when it was last asked stays in every sum, so that no counter
ever falls. What it counted in its last moments is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from router.scheduling.shadow import MAX_DIFFERENCES
from router.telemetry.table import METRICS

_TOGETHER = {row.name.removesuffix("_total"): row.together for row in METRICS}
_ADD_UP = ("counter", "histogram", "summary")
_STATES = "warmroute_replica_state"
"""Every replica has a series of it."""
_OURS_ALONE = ("warmroute_config_", "warmroute_worker")
"""What the supervisor itself knows; workers count for themselves alone."""

Series = tuple[str, tuple[tuple[str, str], ...]]


def parse(text: str, *, open_metrics: bool = False) -> list[Metric]:
    """Return the families in Prometheus' text format, or in OpenMetrics'."""
    families: Iterable[Metric] = (openmetrics_families if open_metrics else text_string_to_metric_families)(text)
    return list(families)


def only_counts(families: Iterable[Metric]) -> list[Metric]:
    """Return those that add up."""
    added = [family for family in families if family.type in _ADD_UP]
    return [family for family in added if _TOGETHER.get(family.name, "sum") == "sum"]


def merged(own: Iterable[Metric], workers: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Return one family for each name, in the order of the first process that has it.

    Args:
        own: The supervisor's.
        workers: Each worker's, and what former ones left.
    """
    sums: dict[str, tuple[Metric, dict[Series, float]]] = {}
    exemplars: dict[Series, Exemplar] = {}
    for is_own, families in ((True, own), *((False, each) for each in workers)):
        for family in families:
            if is_own is not family.name.startswith(_OURS_ALONE):
                continue
            whole, values = sums.setdefault(family.name, (Metric(family.name, family.documentation, family.type), {}))
            together = _TOGETHER.get(family.name, "sum" if family.type in _ADD_UP else "max")
            for sample in family.samples:
                series = (sample.name, tuple(sample.labels.items()))
                if sample.exemplar is not None:
                    exemplars[series] = sample.exemplar
                known = values.get(series)
                if known is None:
                    values[series] = sample.value
                elif together == "sum":
                    values[series] = known + sample.value
                else:
                    values[series] = max(known, sample.value) if together == "max" else min(known, sample.value)
    replicas = _present(sums)
    for whole, values in sums.values():
        series_of = {series: dict(series[1]) for series in values}
        whole.samples = [
            Sample(series[0], labels, values[series], None, exemplars.get(series))
            for series, labels in series_of.items()
            if replicas is None or labels.get("replica") in replicas
        ]
    return [whole for whole, _ in sums.values()]


def _present(sums: dict[str, tuple[Metric, dict[Series, float]]]) -> set[str | None] | None:
    """Return the replicas that some worker has now (and None, for series of no replica); None where nobody tells.

    What a former worker counted of a replica that left must not bring its series back.
    """
    if _STATES not in sums:
        return None
    return {None, *(dict(labels)["replica"] for _, labels in sums[_STATES][1])}


def added(one: Iterable[Metric], other: Iterable[Metric]) -> list[Metric]:
    """Return the sum of what two processes counted."""
    return merged((), (only_counts(one), only_counts(other)))


def exposed(families: Iterable[Metric], *, open_metrics: bool = False) -> bytes:
    """Return families in Prometheus' text format, or in OpenMetrics'."""
    registry = CollectorRegistry()
    registry.register(_These(list(families)))
    text: bytes = (openmetrics.generate_latest if open_metrics else generate_latest)(registry)
    return text


class _These(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self._families


def shadows(views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all workers' shadows made of their requests; each view as `/admin/shadow` gives it."""
    whole, *others = views
    if whole["weights"] is None:
        return whole
    for other in others:
        if other["weights"] != whole["weights"]:
            continue  # it has not read the new ones yet
        for name, value in other.items():
            if name == "differences":
                whole[name] = [each for pair in zip_longest(whole[name], value) for each in pair if each is not None]
            elif name not in ("weights", "sample_share"):
                whole[name] += value
    whole["differences"] = whole["differences"][:MAX_DIFFERENCES]
    return whole
