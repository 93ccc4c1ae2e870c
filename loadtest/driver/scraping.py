"""What engines and router tell at /metrics while a run lasts, beside what its requests saw."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit

from router.kv.engine_metrics import samples, totals

EVERY_S = 1.0
TIMEOUT_S = 2.0
SUMMED = {
    "answered": ("vllm:request_success_total", "sglang:num_requests_total"),
    "cpu_s": ("process_cpu_seconds_total",),
    "rss_bytes": ("process_resident_memory_bytes",),
    "in_flight": ("warmroute_in_flight_requests",),
    "queued": ("warmroute_queue_requests",),
}
"""Figures by the metrics they are the sum of: the first that is there."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one source told at one time.

    Attributes:
        at_s: By the clock that was given.
        source: Its name.
        figures: `running`, `waiting`, `kv_usage` (0 to 1), `query_tokens`, `hit_tokens` of an engine, and those of
            `SUMMED`; what it does not tell is missing.
    """

    at_s: float
    source: str
    figures: Mapping[str, float]


def read_figures(text: str) -> dict[str, float]:
    """Return the figures of a page of metrics."""
    load = totals(text)
    figures: dict[str, float] = {
        name: value
        for name in ("running", "waiting", "kv_usage", "query_tokens", "hit_tokens")
        if (value := getattr(load, name)) is not None
    }
    for name, metrics in SUMMED.items():
        if values := [value for _, value in samples(text, metrics)]:
            figures[name] = sum(values)
    return figures


def metrics_pages(url: str, named: Sequence[str]) -> dict[str, str]:
    """Return the pages to read alongside, by source: the target's own unless others are named (base URLs do)."""
    pages = {}
    for each in named or (url,):
        place = urlsplit(each)
        page = each if place.path.strip("/") else each.rstrip("/") + "/metrics"
        pages[f"{place.hostname}:{place.port or place.scheme}"] = page
    return pages


@dataclass(slots=True)
class Scraper:
    """Reads all sources once a second, on a thread of its own, while it is entered; and once more at the end.

    Attributes:
        urls: Of the metrics' pages, by source.
        scrapes: What was read, in order.
        failures: Reads that failed, by source: a source that is gone tells nothing.
    """

    urls: Mapping[str, str]
    clock: Callable[[], float] = time.perf_counter
    every_s: float = EVERY_S
    scrapes: list[Scrape] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Scraper:
        self.read()
        self._thread = threading.Thread(target=self._keep_reading, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.read()

    def read(self) -> None:
        """Read each source once."""
        for source, url in self.urls.items():
            try:
                with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310
                    text = response.read().decode(errors="replace")
            except (urllib.error.URLError, OSError, ValueError):
                self.failures[source] = self.failures.get(source, 0) + 1
                continue
            self.scrapes.append(Scrape(self.clock(), source, read_figures(text)))

    def _keep_reading(self) -> None:
        while not self._ended.wait(self.every_s):
            self.read()


def grown(scrapes: Sequence[Scrape], figure: str) -> dict[str, float]:
    """Return how much a counter grew from the first to the last scrape of each source that tells it.

    A counter that began anew (a restarted process) counts from nothing.
    """
    sums: dict[str, float] = {}
    last: dict[str, float] = {}
    for scrape in scrapes:
        value = scrape.figures.get(figure)
        if value is None:
            continue
        before = last.get(scrape.source, value)
        sums[scrape.source] = sums.get(scrape.source, 0.0) + (value - before if value >= before else value)
        last[scrape.source] = value
    return sums
