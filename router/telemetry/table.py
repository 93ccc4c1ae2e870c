"""Every metric of the router, in one table: what is not here does not exist.

Names begin with `warmroute_`, units end a name. docs/metrics.md is generated from it (`metrics_table`). Label
values are bounded whatever clients send: a model's name counts only while some replica serves it, a path only when
it is in the allow-list, an error only when it is one of router.errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LONG_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Requests to a language model: from a cached short prompt to a long answer of a busy engine."""
TTFT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0)
SHORT_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""The router's own work."""
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
DIFFERENCE_TOKENS = (-16384.0, -4096.0, -1024.0, -256.0, -64.0, -16.0, -1.0, 0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""Delivered less predicted. Exactly as predicted is what lies over -1 and up to 0."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: As it is exposed; counters end in `_total`.
        type: Prometheus type.
        labels: Label names, in order.
        meaning: One sentence for operators.
        buckets: Upper bounds of a histogram, in the unit that ends its name.
        at_scrape: Read from the fleet when asked, so series of replicas that left are gone with them.
        together: What several workers tell: the sum of theirs, or the greatest or least of them where all tell of the
            same thing.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()
    at_scrape: bool = False
    together: Literal["sum", "max", "min"] = "sum"


def _counter(name: str, meaning: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"warmroute_{name}_total", "counter", labels, meaning)


def _gauge(
    name: str,
    meaning: str,
    *labels: str,
    at_scrape: bool = False,
    together: Literal["sum", "max", "min"] = "max",
) -> MetricSpec:
    return MetricSpec(f"warmroute_{name}", "gauge", labels, meaning, at_scrape=at_scrape, together=together)


def _read_counter(name: str, meaning: str, *labels: str, together: Literal["sum", "max", "min"] = "sum") -> MetricSpec:
    return MetricSpec(f"warmroute_{name}_total", "counter", labels, meaning, at_scrape=True, together=together)


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> MetricSpec:
    return MetricSpec(f"warmroute_{name}", "histogram", labels, meaning, buckets)


METRICS: tuple[MetricSpec, ...] = (
    _gauge("build_info", "Always 1; the version is a label.", "version"),
    # Configuration
    _counter(
        "config_reloads",
        "Times the configuration was read again, by result: `applied`, `unchanged`, `failed` (the one before stays).",
        "result",
    ),
    _gauge("config_loaded_timestamp_seconds", "Unix time when the configuration in force was loaded."),
    _gauge("config_info", "1 for the digest of the configuration in force, secrets masked.", "digest"),
    _gauge("config_failed", "1 while the configuration's file, as it was last read, can't be loaded."),
    _gauge("config_needs_restart", "Changed keys of the configuration that take effect at the next start only."),
    # Workers
    _gauge("workers", "Worker processes by state (`workers` above 1).", "state"),
    _counter("worker_deaths", "Worker processes that ended unasked, and were replaced."),
    # Requests
    _counter("requests", "Requests ended, by class of status (`none`: no answer).", "endpoint", "model", "status"),
    _counter("errors", "Requests answered or broken off by an error of the router's own.", "code"),
    _gauge("in_flight_requests", "Requests accepted and not ended.", together="sum"),
    _histogram("request_seconds", "From a request's head to its end.", LONG_SECONDS, "model"),
    _histogram("ttft_seconds", "From a request's head to its answer's first part, streamed.", TTFT_SECONDS, "model"),
    _counter(
        "retries",
        "Requests sent again: elsewhere (`continued`: for the rest of a broken stream), or (`stale_connection`) on a "
        "new connection.",
        "reason",
    ),
    _counter("ejections", "Replicas left alone for a while after failures in a row."),
    _counter("client_aborts", "Clients that left before their answer was complete."),
    _counter("not_understood", "Prompts placed by load alone, by reason.", "reason"),
    # Tenants and the queue
    _counter("tenant_requests", "Requests ended, by tenant and class of status.", "tenant", "status"),
    _counter("tenant_errors", "Tenants' requests that met an error of the router's own.", "tenant", "code"),
    _counter(
        "tenant_tokens",
        "Tokens as engines counted them: of prompts (`prompt`), of them cached (`cached`), of answers (`completion`).",
        "tenant",
        "kind",
    ),
    _gauge("queue_requests", "Requests that wait for a replica with room (`limits.max_in_flight`).", together="sum"),
    _histogram("queue_seconds", "That requests waited there, however it ended.", LONG_SECONDS),
    # Placement
    _histogram("decision_seconds", "To match, score, pick and reserve.", SHORT_SECONDS),
    _histogram("tokenize_seconds", "To render and tokenise a prompt.", SHORT_SECONDS),
    _counter(
        "remote_tokenize",
        "Prompts that a replica was asked about, for want of a tokenizer in the router or for their media, by result: "
        "`answered`; placed by load, or by what stands before the media: `deadline`, `busy` (too many at once), "
        "`refused` (not 200), `failed` (no connection, odd answer).",
        "result",
    ),
    _counter("decisions", "Placements, by policy.", "policy"),
    _counter(
        "shadow_decisions",
        "Placements scored under `placement.shadow` too, and whether it would have chosen another: `same`, `differed`.",
        "result",
    ),
    _counter(
        "shadow_matched_tokens",
        "Cached tokens of these: where they went (`real`), and where the shadow would have sent them (`shadow`).",
        "rule",
    ),
    _counter(
        "warming_requests",
        "Requests of the router's own (`placement.warming`), for replicas that `join` and `drain`, by result: "
        "`computed`, `refused` (not 200), `failed` (no connection), `no_replica`.",
        "purpose",
        "result",
    ),
    _counter("warming_tokens", "Prompt tokens that engines computed for these.", "purpose"),
    # Reuse ledger
    _counter("prompt_tokens", "Prompt tokens of requests that were served.", "model"),
    _counter(
        "reuse_tokens",
        "The reuse ledger: prompt tokens that the best replica had cached (`available`), the chosen one (`captured`), "
        "that the engine then reported (`delivered`), and those captured where it reported nothing (`unobserved`).",
        "stage",
    ),
    _read_counter(
        "ledger_tokens",
        "The reuse ledger by model and tenant (none: empty): the stages above, `prompt`, and `unpredicted` (delivered "
        "beyond what was captured).",
        "model",
        "tenant",
        "stage",
    ),
    _read_counter(
        "lost_tokens",
        "Prompt tokens that no engine read from its cache, by reason; with `delivered` and `unobserved` they make up "
        "`prompt`. The reasons: docs/admin-api.md.",
        "model",
        "tenant",
        "reason",
    ),
    _gauge(
        "infinite_cache_hit_tokens",
        "What one cache without end would have hit of the same prompts, by estimate; of several workers the sum of "
        "theirs, which is too little where they share prefixes.",
        "model",
        "tenant",
        at_scrape=True,
        together="sum",
    ),
    _gauge(
        "infinite_cache_error_tokens",
        "The standard error of that estimate.",
        "model",
        "tenant",
        at_scrape=True,
        together="sum",
    ),
    _histogram("prediction_difference_tokens", "Cached tokens delivered, less those predicted.", DIFFERENCE_TOKENS),
    _counter(
        "predictions",
        "Requests whose predicted blocks were held against what their unit announced, by verdict: `good`, `mismatch`, "
        "`undecided` (feed behind or interrupted, nothing stored).",
        "verdict",
    ),
    # Feeds
    _gauge("feed_up", "Whether the feed hears its source.", "feed", together="min"),
    _counter("discovery_failures", "Lookups and watches that failed; what was known stays.", "feed"),
    _gauge("peer_routers", "Other routers whose requests in flight are heard of through Redis."),
    _gauge("feed_units", "Units that the Redis feed follows, by state: `synced`, `waiting` for a snapshot.", "state"),
    _counter("feed_messages", "Messages read from lanes, by kind.", "kind"),
    _counter("feed_blocks", "Blocks applied to the index from batches and snapshots.", "op"),
    _counter(
        "shortfall_blocks",
        "Blocks that a unit was believed to hold and its engine did not find; its agent was told of them.",
    ),
    _counter("feed_gaps", "Batches that were missing, late or from another epoch: each ends in a resync."),
    _counter("feed_resyncs", "Snapshots loaded, by reason.", "reason"),
    _counter("feed_refused_leases", "Leases seen anew and not believed, by reason.", "reason"),
    _counter("feed_losses", "Times the link to Redis was lost."),
    _histogram(
        "feed_lag_seconds",
        "From Redis' own time of an entry to the index, so it holds the difference of the two clocks.",
        LAG_SECONDS,
    ),
    _counter("probes", "Probes of engines by the router itself.", "result"),
    # Fleet, at scrape
    _gauge("replicas", "Replicas by state.", "state", at_scrape=True),
    _gauge(
        "replica_trust",
        "1 for each trust that a replica has for a model; `distrusted` beside `approximate` where predictions fail.",
        "replica",
        "model",
        "state",
        at_scrape=True,
    ),
    _gauge("replica_state", "1 for a replica's present state.", "replica", "state", at_scrape=True),
    _gauge("replica_requests", "The router's requests in flight there.", "replica", at_scrape=True, together="sum"),
    _gauge(
        "replica_backlog_tokens", "Uncached prompt tokens in flight there.", "replica", at_scrape=True, together="sum"
    ),
    _gauge(
        "replica_foreign_requests",
        "Requests that the engine counted beyond those of all routers that are heard of.",
        "replica",
        at_scrape=True,
    ),
    _gauge("replica_running_requests", "The engine's own figure.", "replica", at_scrape=True),
    _gauge("replica_waiting_requests", "The engine's own figure.", "replica", at_scrape=True),
    _gauge("replica_kv_usage_share", "The engine's own figure, mean of its ranks.", "replica", at_scrape=True),
    _read_counter(
        "replica_engine_cache_tokens",
        "The engine's own counters, since the router heard it: prompt tokens looked up in its prefix cache (`query`), "
        "and found (`hit`).",
        "replica",
        "kind",
        together="max",
    ),
    _gauge(
        "replica_engine_hit_share",
        "Share of the prompt tokens that the engine found in its prefix cache, of about the last minute.",
        "replica",
        at_scrape=True,
    ),
    _read_counter(
        "replica_ended_requests",
        "Requests that ended there: `good` (2xx), `failed`, `aborted` (the client left).",
        "replica",
        "result",
    ),
    _read_counter("replica_reuse_tokens", "The ledger's stages, of requests that it served.", "replica", "stage"),
    MetricSpec(
        "warmroute_replica_ttft_seconds",
        "histogram",
        ("replica",),
        "From a request's head to its answer's first part, streamed, of requests that it served.",
        TTFT_SECONDS,
        at_scrape=True,
    ),
    _gauge(
        "model_queue_seconds",
        "Seconds of prompt tokens that wait before a ready replica of the model, on the mean: pools are scaled by it.",
        "model",
        at_scrape=True,
    ),
    _gauge("index_blocks", "Blocks that the index knows there.", "replica", at_scrape=True),
    _gauge(
        "index_age_seconds",
        "Since the router last heard what the replica's units hold, the oldest of them: agents tell every second.",
        "replica",
        at_scrape=True,
    ),
    _gauge("index_distinct_blocks", "Distinct blocks in the index.", at_scrape=True),
    _gauge(
        "token_cache_bytes",
        "What texts and prompts that were read before take; `limits.token_cache_bytes` bounds it.",
        at_scrape=True,
        together="sum",
    ),
    _read_counter(
        "token_cache_lookups",
        "Whole prompts and pieces of text that were looked up, and whether they were there: `hit`, `miss`.",
        "kind",
        "result",
    ),
)


def spec(name: str) -> MetricSpec:
    """Return a metric's row; a KeyError tells that it is in no row."""
    return _BY_NAME[name]


_BY_NAME = {row.name: row for row in METRICS}


def metrics_table() -> str:
    """Return the table for docs/metrics.md, in Markdown."""
    lines = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    for row in METRICS:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| `{row.name}` | {row.type} | {labels} | {row.meaning} |")
    return "\n".join(lines) + "\n"
