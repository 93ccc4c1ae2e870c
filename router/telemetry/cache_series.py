"""What the token cache holds and how often it helped, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.request.memo import PromptMemo
from router.request.token_cache import TokenCache
from router.telemetry.table import spec


class CacheSeries(Collector):
    """Collector of a process's token cache and of the prompts kept in it."""

    def __init__(self, cache: TokenCache, memo: PromptMemo) -> None:
        self._cache = cache
        self._memo = memo

    def describe(self) -> list[Metric]:
        """Nothing ahead of a scrape: the table holds the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the table's rows."""
        held = spec("warmroute_token_cache_bytes")
        yield GaugeMetricFamily(held.name, held.meaning, value=self._cache.used_bytes)
        asked = spec("warmroute_token_cache_lookups_total")
        family = CounterMetricFamily(asked.name.removesuffix("_total"), asked.meaning, labels=asked.labels)
        for kind, found in (("prompt", self._memo), ("piece", self._cache)):
            family.add_metric([kind, "hit"], found.hits)
            family.add_metric([kind, "miss"], found.misses)
        yield family
