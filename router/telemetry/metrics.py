"""The instruments behind the table of metrics, each with a typed method for what happened.

What every request counts is looked up once and kept; see `router.telemetry.instruments` for what counting costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from router.errors import WarmrouteError
from router.scheduling.decision import Outcome
from router.telemetry.access_log import RequestFacts
from router.telemetry.instruments import Count, Distribution, Instruments
from router.telemetry.table import METRICS, MetricSpec, metrics_table

__all__ = ["METRICS", "MetricSpec", "Metrics", "metrics_table"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_STAGES = ("available", "captured", "delivered", "unobserved")
_TOKEN_KINDS = ("prompt", "cached", "completion")
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
        self.registry = CollectorRegistry()
        self._instruments = self.instruments = Instruments(METRICS)
        self._counting: list[Collector] = [self._instruments]
        self.registry.register(self._instruments)
        self._count = self._instruments.count
        self._distribution = self._instruments.distribution
        self._seen: dict[str, set[str]] = {"model": set(), "reason": set(), "tenant": set()}
        self._paths = frozenset(paths)
        self._is_known_model = is_known_model
        self._codes = frozenset(_codes(WarmrouteError))
        self._count("warmroute_build_info", version).value = float(1)
        self._stages = tuple(self._count("warmroute_reuse_tokens_total", stage) for stage in _STAGES)
        self._in_flight = self._count("warmroute_in_flight_requests")
        self._tokenize_seconds = self._distribution("warmroute_tokenize_seconds")
        self._decision_seconds = self._distribution("warmroute_decision_seconds")
        self._decisions: dict[str, Count] = {}
        self._ended: dict[tuple[str, str | None, int | None], tuple[Count, Distribution]] = {}
        """By path, model and status, for those that are labels: what clients make up is not kept."""
        self._prompt_tokens: dict[str | None, Count] = {}
        for result in ("applied", "unchanged", "failed"):
            self._count("warmroute_config_reloads_total", result)

    def register(self, collector: Collector, *, counts: bool = False) -> None:
        """Add a collector that reads its figures when it is scraped.

        Args:
            counts: It has counters alone, which must outlive a worker's end.
        """
        self.registry.register(collector)
        if counts:
            self._counting.append(collector)

    def render(self, *, open_metrics: bool = False) -> bytes:
        """Return everything in Prometheus' text format (`CONTENT_TYPE`), or in OpenMetrics' (`OPEN_METRICS_TYPE`).

        That one has exemplars: traces of requests beside the buckets that they fell into.
        """
        text: bytes = (openmetrics.generate_latest if open_metrics else generate_latest)(self.registry)
        return text

    def counted(self) -> list[Metric]:
        """Return the families that are counted here, without those that are read at scrape."""
        return [family for collector in self._counting for family in collector.collect()]

    def render_counted(self) -> bytes:
        """Return those families in Prometheus' text format."""
        registry = CollectorRegistry()
        for collector in self._counting:
            registry.register(collector)
        return generate_latest(registry)

    # Workers

    def workers_are(self, states: Mapping[str, int]) -> None:
        """How many worker processes are in each state."""
        for state, count in states.items():
            self._count("warmroute_workers", state).value = float(count)

    def worker_died(self) -> None:
        """A worker process ended unasked."""
        self._count("warmroute_worker_deaths_total").value += 1

    # Configuration

    def config_loaded(self, digest: str, at_unix_s: float, needs_restart: int = 0) -> None:
        """A configuration is in force."""
        self._instruments.clear("warmroute_config_info")
        self._count("warmroute_config_info", digest).value = float(1)
        self._count("warmroute_config_loaded_timestamp_seconds").value = at_unix_s
        self._count("warmroute_config_needs_restart").value = float(needs_restart)

    def config_reloaded(self, result: str) -> None:
        """The configuration was read again: `applied`, `unchanged`, `failed`."""
        self._count("warmroute_config_reloads_total", result).value += 1
        self._count("warmroute_config_failed").value = result == "failed"

    def allow_paths(self, paths: Collection[str]) -> None:
        """Label these paths from now on, any other as `other`."""
        self._paths = frozenset(paths)
        self._ended.clear()

    # Requests

    def request_accepted(self) -> None:
        """A request's head is complete."""
        self._in_flight.value += 1

    def request_ended(self, path: str, model: str | None, status: int | None, total_s: float) -> None:
        """A request ended, however it did. `status` None: no answer was begun."""
        found = self._ended.get((path, model, status))
        if found is None:
            found = self._series_of_end(path, model, status)
        self._in_flight.value -= 1
        found[0].value += 1
        found[1].observe(total_s)

    def _series_of_end(self, path: str, model: str | None, status: int | None) -> tuple[Count, Distribution]:
        label = self.model_label(model)
        endpoint = path if path in self._paths else "other"
        status_class = "none" if status is None else f"{status // 100}xx" if 100 <= status <= 599 else "other"
        found = (
            self._count("warmroute_requests_total", endpoint, label, status_class),
            self._distribution("warmroute_request_seconds", label),
        )
        if endpoint == path and label == model and len(self._ended) < MAX_LABEL_VALUES:
            self._ended[(path, model, status)] = found
        return found

    def request_traced(self, facts: RequestFacts, outcome: Outcome) -> None:
        """A request that was counted has a trace: it is an example for those that were as slow."""
        trace_id, label, now_s = facts.trace_id, self.model_label(facts.model), time.time()
        if trace_id is None:
            return
        self._distribution("warmroute_request_seconds", label).traced(outcome.total_s, trace_id, now_s)
        if facts.stream and outcome.ttft_s is not None and outcome.status is not None and outcome.status < 300:
            self._distribution("warmroute_ttft_seconds", label).traced(outcome.ttft_s, trace_id, now_s)

    def error_answered(self, code: str) -> None:
        """A request met an error of the router's own."""
        self._count("warmroute_errors_total", code if code in self._codes else "other").value += 1

    def first_token_seen(self, model: str | None, ttft_s: float) -> None:
        """A streamed answer began."""
        self._distribution("warmroute_ttft_seconds", self.model_label(model)).observe(ttft_s)

    def request_retried(self, reason: str) -> None:
        """A request is sent again; `reason` is an error's code, `refused`, `continued` or `stale_connection`."""
        known = reason in self._codes or reason in ("stale_connection", "refused", "continued")
        self._count("warmroute_retries_total", reason if known else "other").value += 1

    def replica_ejected(self) -> None:
        """Failures in a row took a replica out for a while."""
        self._count("warmroute_ejections_total").value += 1

    def client_aborted(self) -> None:
        """A client left before its answer was complete."""
        self._count("warmroute_client_aborts_total").value += 1

    # Tenants and the queue

    def tenant_request_ended(self, tenant: str, outcome: Outcome) -> None:
        """A tenant's request ended, however it did."""
        label, status = self._bounded("tenant", tenant), outcome.status
        status_class = "none" if status is None else f"{status // 100}xx" if 100 <= status <= 599 else "other"
        self._count("warmroute_tenant_requests_total", label, status_class).value += 1
        if outcome.error is not None:
            code = outcome.error if outcome.error in self._codes else "other"
            self._count("warmroute_tenant_errors_total", label, code).value += 1
        tokens = (outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens)
        for kind, count in zip(_TOKEN_KINDS, tokens, strict=True):
            if count:
                self._count("warmroute_tenant_tokens_total", label, kind).value += count

    def queue_changed(self, waiting: int) -> None:
        """So many requests wait for a replica now."""
        self._count("warmroute_queue_requests").value = float(waiting)

    def queue_left(self, waited_s: float) -> None:
        """A request waits no more."""
        self._distribution("warmroute_queue_seconds").observe(waited_s)

    # Placement

    def decision_made(self, policy: str, seconds: float) -> None:
        """A request was placed."""
        count = self._decisions.get(policy)
        if count is None:
            count = self._decisions[policy] = self._count("warmroute_decisions_total", policy)
        count.value += 1
        self._decision_seconds.observe(seconds)

    def shadow_compared(self, differs: bool, matched_tokens: int, shadow_matched_tokens: int) -> None:
        """A request was scored under other weights, too."""
        self._count("warmroute_shadow_decisions_total", "differed" if differs else "same").value += 1
        self._count("warmroute_shadow_matched_tokens_total", "real").value += matched_tokens
        self._count("warmroute_shadow_matched_tokens_total", "shadow").value += shadow_matched_tokens

    def warmed(self, purpose: str, result: str, computed_tokens: int) -> None:
        """A request of the router's own ended: `computed`, `refused`, `failed`, `no_replica`."""
        self._count("warmroute_warming_requests_total", purpose, result).value += 1
        self._count("warmroute_warming_tokens_total", purpose).value += computed_tokens

    def prompt_read(self, seconds: float, reason: str | None) -> None:
        """A prompt was rendered and tokenised; `reason` says why it was not understood."""
        self._tokenize_seconds.observe(seconds)
        if reason is not None:
            self._count("warmroute_not_understood_total", self._bounded("reason", reason)).value += 1

    def remote_tokenized(self, result: str) -> None:
        """A replica was to tokenise a prompt: `answered`, `deadline`, `busy`, `refused`, `failed`."""
        self._count("warmroute_remote_tokenize_total", result).value += 1

    def prediction_judged(self, verdict: str) -> None:
        """A request's predicted blocks were held against what its unit announced: `good`, `mismatch`, `undecided`."""
        self._count("warmroute_predictions_total", verdict).value += 1

    def reuse_counted(
        self, model: str | None, prompt_tokens: int, available: int, captured: int, delivered: int | None
    ) -> None:
        """A request was served: the reuse ledger. `delivered` None: the engine reported nothing."""
        count = self._prompt_tokens.get(model)
        if count is None:
            label = self.model_label(model)
            count = self._count("warmroute_prompt_tokens_total", label)
            if label == model:
                self._prompt_tokens[model] = count
        count.value += prompt_tokens
        of_available, of_captured, of_delivered, of_unobserved = self._stages
        of_available.value += available
        of_captured.value += captured
        if delivered is None:
            of_unobserved.value += captured
        else:
            of_delivered.value += delivered
            self._distribution("warmroute_prediction_difference_tokens").observe(delivered - captured)

    # Feeds

    def feed_changed(self, feed: str, *, up: bool) -> None:
        """A feed hears its source, or no longer does."""
        self._count("warmroute_feed_up", feed).value = up

    def discovery_failed(self, feed: str) -> None:
        """A lookup or a watch failed, and what it knew stays."""
        self._count("warmroute_discovery_failures_total", feed).value += 1

    def feed_lost(self) -> None:
        """The link to Redis broke."""
        self._count("warmroute_feed_losses_total").value += 1

    def feed_units(self, synced: int, waiting: int) -> None:
        """How far the Redis feed is."""
        self._count("warmroute_feed_units", "synced").value = float(synced)
        self._count("warmroute_feed_units", "waiting").value = float(waiting)

    def peers_are(self, count: int) -> None:
        """So many other routers are heard of."""
        self._count("warmroute_peer_routers").value = float(count)

    def message_read(self, kind: str, count: int = 1) -> None:
        """Messages came from a lane: `batch`, `heartbeat`, `state`, `unknown`, `broken`, `unregistered`."""
        self._count("warmroute_feed_messages_total", kind).value += count

    def blocks_applied(self, op: str, count: int) -> None:
        """The index changed: `stored`, `removed`, `snapshot`."""
        self._count("warmroute_feed_blocks_total", op).value += count

    def event_applied(self, lag_s: float) -> None:
        """An entry reached the index; `lag_s` is counted from Redis' time of it."""
        self._distribution("warmroute_feed_lag_seconds").observe(max(0.0, lag_s))

    def shortfall_told(self, blocks: int) -> None:
        """An agent was told of blocks that its engine did not find."""
        self._count("warmroute_shortfall_blocks_total").value += blocks

    def gap_found(self) -> None:
        """A batch did not follow the one before."""
        self._count("warmroute_feed_gaps_total").value += 1

    def unit_resynced(self, reason: str) -> None:
        """A snapshot was loaded: `joined`, `gap`, `epoch`, `returned`."""
        self._count("warmroute_feed_resyncs_total", reason).value += 1

    def lease_refused(self, reason: str) -> None:
        """A lease is not believed: `signature`, `address`, `malformed`, `identity`, `limit`."""
        self._count("warmroute_feed_refused_leases_total", reason).value += 1

    def engine_probed(self, *, passed: bool) -> None:
        """The router asked an engine for its health."""
        self._count("warmroute_probes_total", "passed" if passed else "failed").value += 1

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


def _codes(error: type[WarmrouteError]) -> Iterable[str]:
    yield error.code
    for below in error.__subclasses__():
        yield from _codes(below)
