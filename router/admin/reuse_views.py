"""How the reuse ledger looks to an operator."""

from __future__ import annotations

from typing import Any

from router.fleet.replica import Replica
from router.telemetry.instruments import Distribution
from router.telemetry.replica_traffic import ReplicaTraffic, Traffic


def traffic_view(found: ReplicaTraffic | None) -> dict[str, Any] | None:
    """Return what a replica did with this router's requests since it joined; None where it had none."""
    if found is None:
        return None
    return {
        "good": found.good,
        "failed": found.failed,
        "aborted": found.aborted,
        "prompt_tokens": found.prompt_tokens,
        "observed_prompt_tokens": found.observed_prompt_tokens,
        "captured_tokens": found.captured_tokens,
        "delivered_tokens": found.delivered_tokens,
        "unobserved_tokens": found.unobserved_tokens,
        "hit_share": _share(found.delivered_tokens, found.observed_prompt_tokens),
        "ttft_p50_s": quantile(found.ttft_s, 0.5),
        "ttft_p90_s": quantile(found.ttft_s, 0.9),
    }


def quantile(values: Distribution, share: float) -> float | None:
    """Return a quantile by a histogram's buckets, interpolated within one; None of nothing, or past the last bound."""
    wanted, below, lower = share * sum(values.counts), 0, 0.0
    if not wanted:
        return None
    for bound, count in zip(values.bounds, values.counts, strict=False):
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
                },
                "hidden_hit_tokens": None if counted is None else max(0, counted.hits - delivered),
            }
        )
    return views


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
