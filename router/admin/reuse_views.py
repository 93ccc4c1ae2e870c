"""How the reuse ledger looks to an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router.fleet.replica import Replica
from router.telemetry.replica_traffic import ReplicaTraffic, Traffic
from router.telemetry.table import TTFT_SECONDS


def traffic_view(found: ReplicaTraffic | None) -> dict[str, Any] | None:
    """Return what a replica did with this router's requests since it joined; None where it had none."""
    if found is None:
        return None
    figures = {
        "good": found.good,
        "failed": found.failed,
        "aborted": found.aborted,
        "prompt_tokens": found.prompt_tokens,
        "observed_prompt_tokens": found.observed_prompt_tokens,
        "captured_tokens": found.captured_tokens,
        "delivered_tokens": found.delivered_tokens,
        "unobserved_tokens": found.unobserved_tokens,
        "ttft_counts": list(found.ttft_s.counts),
    }
    return with_quantiles(figures)


def with_quantiles(figures: dict[str, Any]) -> dict[str, Any]:
    """Return a replica's traffic with what follows from its counts."""
    counts = figures["ttft_counts"]
    return {
        **figures,
        "hit_share": _share(figures["delivered_tokens"], figures["observed_prompt_tokens"]),
        "ttft_p50_s": quantile(TTFT_SECONDS, counts, 0.5),
        "ttft_p90_s": quantile(TTFT_SECONDS, counts, 0.9),
    }


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return a quantile by a histogram's buckets, interpolated within one; None of nothing, or past the last bound."""
    wanted, below, lower = share * sum(counts), 0, 0.0
    if not wanted:
        return None
    for bound, count in zip(bounds, counts, strict=False):
        if below + count >= wanted:
            return round(lower + (bound - lower) * (wanted - below) / count, 6)
        below, lower = below + count, bound
    return None


def engine_views(traffic: Traffic, replicas: list[Replica]) -> list[dict[str, Any]]:
    """Return, for each replica, the ledger's sums beside what its engine counted itself since it is heard.

    An engine counts what all its clients send, and a request when it begins; the router when it ends. So they agree
    when nothing is in flight and nobody else sends there. `hidden_hit_tokens` is what the engine read from its cache
    and reported to no request of this router: for streams without usage, other routers, other clients.
    """
    views = []
    for replica in replicas:
        found = traffic.replicas.get(replica.replica_id)
        counted = replica.cache_counts()
        delivered = 0 if found is None else found.delivered_tokens
        views.append(
            {
                "replica": replica.replica_id,
                "router": traffic_view(found),
                "engine": None
                if counted is None
                else {
                    "query_tokens": counted.queries,
                    "hit_tokens": counted.hits,
                    "hit_share": _share(counted.hits, counted.queries),
                    "hit_share_lately": None if counted.lately is None else round(counted.lately, 4),
                },
                "hidden_hit_tokens": None if counted is None else max(0, counted.hits - delivered),
            }
        )
    return views


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
