"""The reuse ledger and replicas' traffic of many processes as one; each view as admin gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router.admin.reuse_views import with_quantiles
from router.telemetry.reuse_ledger import Account, add_to, infinite_cache, summed
from router.telemetry.seen_blocks import DistinctBlocks

Key = tuple[str, str | None]


def ledgers(views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the ledger of all workers' requests.

    A block that two workers missed is one block: so what a cache without end would have hit is worked out anew, from
    both workers' registers.
    """
    whole: dict[Key, dict[str, Any]] = {}
    sketches: dict[Key, Account] = {}
    for view in views:
        for each in view["accounts"]:
            key = (each["model"], each["tenant"])
            sketch = sketches.setdefault(key, Account(each["model"]))
            for size, told in each.pop("sketch").items():
                sketch.readable[int(size)] = sketch.readable.get(int(size), 0) + told["readable_tokens"]
                sketch.missed.setdefault(int(size), DistinctBlocks()).take(DistinctBlocks.unpacked(told["registers"]))
            if key in whole:
                add_to(whole[key], each)
            else:
                whole[key] = each
    for key, each in whole.items():
        each["infinite_cache"] = infinite_cache({key: sketches[key]})
    accounts = list(whole.values())
    total = {**summed(accounts), "infinite_cache": infinite_cache(sketches)}
    return {"total": total, "accounts": accounts, "replicas": _replicas([v["replicas"] for v in views])}


def _replicas(lists: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    first, *others = lists
    for other in others:
        theirs = {item["replica"]: item for item in other}
        for item in first:
            found = theirs.get(item["replica"])
            if found is None:
                continue
            item["router"] = traffic(item["router"], found["router"])
            known = [engine for engine in (item["engine"], found["engine"]) if engine is not None]
            # All hear the same engine, each since its own start.
            item["engine"] = max(known, key=lambda engine: engine["query_tokens"], default=None)
    for item in first:
        delivered = 0 if item["router"] is None else item["router"]["delivered_tokens"]
        hits = None if item["engine"] is None else item["engine"]["hit_tokens"]
        item["hidden_hit_tokens"] = None if hits is None else max(0, hits - delivered)
    return first


def traffic(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the sum of what two workers sent to a replica."""
    if one is None or other is None:
        return one or other
    whole = {name: value + other[name] for name, value in one.items() if isinstance(value, int)}
    counts = [sum(pair) for pair in zip(one["ttft_counts"], other["ttft_counts"], strict=True)]
    return with_quantiles({**whole, "ttft_counts": counts})
