"""The instruments behind the table of metrics, each with a typed method for what happened.

Label values are looked up once and kept: counting costs about a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.registry import Collector

from router.errors import WarmrouteError
from router.telemetry.table import METRICS, MetricSpec, metrics_table

__all__ = ["METRICS", "MetricSpec", "Metrics", "metrics_table"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_VALUES = 1_000
"""Label values kept for one label of one metric; later ones count as `other`. Adapters can come without end."""


class Metrics:
    """All metrics of one router, in a registry of its own.

    Args:
        version: The distribution's, for `warmroute_build_info`.
        paths: The allow-list: any other path is labelled `other`.
        is_known_model: Whether some replica serves this name: any other is labelled `unknown`.
    """

    def __init__(
        self,
        version: str = "0",
        paths: Collection[str] = (),
        is_known_model: Callable[[str], bool] = lambda name: False,
    ) -> None:
        # A process-wide switch of the library: its `_created` series are in no table of ours.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own
        self.registry = CollectorRegistry()
        self._instruments = {row.name: self._build(row) for row in METRICS if not row.at_scrape}
        self._children: dict[tuple[str, ...], Any] = {}
        self._seen: dict[str, set[str]] = {"model": set(), "reason": set()}
        self._paths = frozenset(paths)
        self._is_known_model = is_known_model
        self._codes = frozenset(_codes(WarmrouteError))
        self._child("warmroute_build_info", version).set(1)
        for stage in ("available", "captured", "delivered", "unobserved"):
            self._child("warmroute_reuse_tokens_total", stage)

    def register(self, collector: Collector) -> None:
        """Add a collector that reads its figures when it is scraped."""
        self.registry.register(collector)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    # Requests

    def request_accepted(self) -> None:
        """A request's head is complete."""
        self._child("warmroute_in_flight_requests").inc()

    def request_ended(self, path: str, model: str | None, status: int | None, total_s: float) -> None:
        """A request ended, however it did. `status` None: no answer was begun."""
        label = self.model_label(model)
        endpoint = path if path in self._paths else "other"
        status_class = "none" if status is None else f"{status // 100}xx" if 100 <= status <= 599 else "other"
        self._child("warmroute_in_flight_requests").dec()
        self._child("warmroute_requests_total", endpoint, label, status_class).inc()
        self._child("warmroute_request_seconds", label).observe(total_s)

    def error_answered(self, code: str) -> None:
        """A request met an error of the router's own."""
        self._child("warmroute_errors_total", code if code in self._codes else "other").inc()

    def first_token_seen(self, model: str | None, ttft_s: float) -> None:
        """A streamed answer began."""
        self._child("warmroute_ttft_seconds", self.model_label(model)).observe(ttft_s)

    def request_retried(self, reason: str) -> None:
        """A request is sent again; `reason` is an error's code, `refused` or `stale_connection`."""
        known = reason in self._codes or reason in ("stale_connection", "refused")
        self._child("warmroute_retries_total", reason if known else "other").inc()

    def replica_ejected(self) -> None:
        """Failures in a row took a replica out for a while."""
        self._child("warmroute_ejections_total").inc()

    def client_aborted(self) -> None:
        """A client left before its answer was complete."""
        self._child("warmroute_client_aborts_total").inc()

    # Placement

    def decision_made(self, policy: str, seconds: float) -> None:
        """A request was placed."""
        self._child("warmroute_decisions_total", policy).inc()
        self._child("warmroute_decision_seconds").observe(seconds)

    def prompt_read(self, seconds: float, reason: str | None) -> None:
        """A prompt was rendered and tokenised; `reason` says why it was not understood."""
        self._child("warmroute_tokenize_seconds").observe(seconds)
        if reason is not None:
            self._child("warmroute_not_understood_total", self._bounded("reason", reason)).inc()

    def remote_tokenized(self, result: str) -> None:
        """A replica was to tokenise a prompt: `answered`, `deadline`, `busy`, `refused`, `failed`."""
        self._child("warmroute_remote_tokenize_total", result).inc()

    def prediction_judged(self, verdict: str) -> None:
        """A request's predicted blocks were held against what its unit announced: `good`, `mismatch`, `undecided`."""
        self._child("warmroute_predictions_total", verdict).inc()

    def reuse_counted(
        self, model: str | None, prompt_tokens: int, available: int, captured: int, delivered: int | None
    ) -> None:
        """A request was served: the reuse ledger. `delivered` None: the engine reported nothing."""
        self._child("warmroute_prompt_tokens_total", self.model_label(model)).inc(prompt_tokens)
        self._child("warmroute_reuse_tokens_total", "available").inc(available)
        self._child("warmroute_reuse_tokens_total", "captured").inc(captured)
        if delivered is None:
            self._child("warmroute_reuse_tokens_total", "unobserved").inc(captured)
        else:
            self._child("warmroute_reuse_tokens_total", "delivered").inc(delivered)
            self._child("warmroute_prediction_difference_tokens").observe(delivered - captured)

    # Feeds

    def feed_changed(self, feed: str, *, up: bool) -> None:
        """A feed hears its source, or no longer does."""
        self._child("warmroute_feed_up", feed).set(up)

    def feed_lost(self) -> None:
        """The link to Redis broke."""
        self._child("warmroute_feed_losses_total").inc()

    def feed_units(self, synced: int, waiting: int) -> None:
        """How far the Redis feed is."""
        self._child("warmroute_feed_units", "synced").set(synced)
        self._child("warmroute_feed_units", "waiting").set(waiting)

    def message_read(self, kind: str, count: int = 1) -> None:
        """Messages came from a lane: `batch`, `heartbeat`, `state`, `unknown`, `broken`, `unregistered`."""
        self._child("warmroute_feed_messages_total", kind).inc(count)

    def blocks_applied(self, op: str, count: int) -> None:
        """The index changed: `stored`, `removed`, `snapshot`."""
        self._child("warmroute_feed_blocks_total", op).inc(count)

    def event_applied(self, lag_s: float) -> None:
        """An entry reached the index; `lag_s` is counted from Redis' time of it."""
        self._child("warmroute_feed_lag_seconds").observe(max(0.0, lag_s))

    def gap_found(self) -> None:
        """A batch did not follow the one before."""
        self._child("warmroute_feed_gaps_total").inc()

    def unit_resynced(self, reason: str) -> None:
        """A snapshot was loaded: `joined`, `gap`, `epoch`, `returned`."""
        self._child("warmroute_feed_resyncs_total", reason).inc()

    def lease_refused(self, reason: str) -> None:
        """A lease is not believed: `signature`, `address`, `malformed`, `identity`, `limit`."""
        self._child("warmroute_feed_refused_leases_total", reason).inc()

    def engine_probed(self, *, passed: bool) -> None:
        """The router asked an engine for its health."""
        self._child("warmroute_probes_total", "passed" if passed else "failed").inc()

    # Labels

    def model_label(self, model: str | None) -> str:
        """Return a model's label: its name once a replica served it, else `unknown`."""
        if model is None:
            return "unknown"
        if model in self._seen["model"]:
            return model
        return self._bounded("model", model) if self._is_known_model(model) else "unknown"

    def _bounded(self, label: str, value: str) -> str:
        seen = self._seen[label]
        if value not in seen:
            if len(seen) >= MAX_LABEL_VALUES:
                return "other"
            seen.add(value)
        return value

    def _child(self, name: str, *values: str) -> Any:
        key = (name, *values)
        child = self._children.get(key)
        if child is None:
            instrument = self._instruments[name]
            child = self._children[key] = instrument.labels(*values) if values else instrument
        return child

    def _build(self, row: MetricSpec) -> Any:
        if row.type == "counter":
            return Counter(row.name, row.meaning, row.labels, registry=self.registry)
        if row.type == "gauge":
            return Gauge(row.name, row.meaning, row.labels, registry=self.registry)
        return Histogram(row.name, row.meaning, row.labels, registry=self.registry, buckets=row.buckets)


def _codes(error: type[WarmrouteError]) -> Iterable[str]:
    yield error.code
    for below in error.__subclasses__():
        yield from _codes(below)
