"""Every endpoint of admin, in one table; that of docs/admin-api.md is generated from it."""

from __future__ import annotations

from dataclasses import dataclass

from router.admin.block_list import DEFAULT_BLOCKS, MAX_BLOCKS
from router.admin.prefixes import DEFAULT_PREFIXES, MAX_PREFIXES

MAX_STREAMS = 32
"""Dashboards, and `warmroute top`s, that one process serves live."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the table.

    Attributes:
        handler: Its name among the handlers.
        is_open: Answered without the token.
    """

    method: str
    path: str
    handler: str
    meaning: str
    is_open: bool = False


CONFIG_MEANING = (
    "the configuration in force, secrets masked; `reload`: its digest, when it was loaded, what is wrong with the file "
    "as it is now, and which changed keys need a restart"
)
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/healthz", "healthz", "200 while the process is alive; needs no token", is_open=True),
    Endpoint(
        "GET",
        "/readyz",
        "readyz",
        "200 when it may take traffic, else 503 with the reasons; needs no token",
        is_open=True,
    ),
    Endpoint(
        "GET",
        "/metrics",
        "metrics",
        "Prometheus metrics; as OpenMetrics, with traces for exemplars, where `Accept` takes it",
    ),
    Endpoint(
        "GET",
        "/admin/replicas",
        "replicas",
        "every replica: state, blocks, load; trust with its reason, for each model and kind of requests; `texts`: "
        "where each model's tokenizer comes from (`folder`, `hub`, `agent`, or `replica`: each prompt is asked for)",
    ),
    Endpoint(
        "GET",
        "/admin/replicas/{replica}/blocks",
        "blocks",
        "which blocks the index holds for each unit of a replica: count, digest (equal for equal blocks), the first "
        f"`?limit=N` (default {DEFAULT_BLOCKS:,}, at most {MAX_BLOCKS:,}) by hash as `[hash, tier, group]`; "
        "`?after=HASH` goes on",
    ),
    Endpoint(
        "GET",
        "/admin/decisions",
        "decisions",
        "the last decisions, newest first; `?limit=N` (default 50), `?order=slowest` or `surprising` (the engine had "
        "most more or fewer cached than predicted) of all that are kept, `?traces=1` adds hashes of their prompts "
        "where `admin.traces` is on",
    ),
    Endpoint("GET", "/admin/decisions/{request-id}", "decision", "one decision with every term and what came of it"),
    Endpoint(
        "GET",
        "/admin/ledger",
        "ledger",
        "the reuse ledger: where prompt tokens went, by model and tenant; what a cache without end would have hit; "
        "each replica's sums beside its engine's own counters",
    ),
    Endpoint(
        "POST",
        "/admin/explain",
        "explain",
        "the decision that an OpenAI body would get now, nothing is sent; "
        "`?path=` names its endpoint (default: by the body, chat or completions), `?policy=` another policy, "
        "`?weights={...}` other weights (JSON, those of `placement.weights`), `?tokens=1` "
        "adds its `token_ids` and `media`",
    ),
    Endpoint(
        "GET",
        "/admin/shadow",
        "shadow",
        "what `placement.shadow` made of the requests since its weights are these: how many it would have placed "
        "otherwise, cached tokens where they went and where it would have sent them, the last differences",
    ),
    Endpoint(
        "GET",
        "/admin/autoscaling/{model}",
        "autoscaling",
        "what an autoscaler asks about a model: `replicas` that are ready, `queue_s` (mean seconds of prompt tokens "
        "that wait before one), `running`, `waiting`, `kv_usage_share`, `captured_share`",
    ),
    Endpoint("GET", "/admin/config", "configuration", CONFIG_MEANING),
    Endpoint(
        "POST",
        "/admin/replicas/{replica}/drain",
        "drain",
        'the replica takes no new requests and finishes what it has, for `{"for_s": seconds}` (default 3600, at most '
        "604800); as JSON (`content-type: application/json`)",
    ),
    Endpoint(
        "POST",
        "/admin/replicas/{replica}/drain/undo",
        "undrain",
        "it may take requests again; as JSON, an empty body will do",
    ),
    Endpoint("GET", "/admin/", "page", "the dashboard; the page itself needs no token, what it shows does", True),
    Endpoint("GET", "/admin", "page", "leads to it", True),
    Endpoint("GET", "/admin/assets/{file}", "asset", "its style and scripts", True),
    Endpoint(
        "GET",
        "/admin/overview",
        "overview",
        "what the dashboard and `warmroute top` show: a row for each replica with its last minute, totals, warnings "
        "with remedies, the latest, slowest and most surprising decisions",
    ),
    Endpoint("GET", "/admin/history", "history", "the totals of the last hour, every 5 s"),
    Endpoint(
        "GET",
        "/admin/prefixes",
        "prefixes",
        "the beginnings that most prompt tokens of sampled requests lie in: hash of the last block (with tenants a "
        f"pseudonym), length, requests, share held by each replica; `?limit=N` (default {DEFAULT_PREFIXES}, at most "
        f"{MAX_PREFIXES})",
    ),
    Endpoint(
        "GET",
        "/admin/events",
        "events",
        "the same as server-sent events: `history` at first, then `overview` every second, `sample` and `prefixes` "
        f"every 5 s; at most {MAX_STREAMS} at once",
    ),
)
