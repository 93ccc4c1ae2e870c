"""Reads an engine's load and cache configuration out of its /metrics. Pure.

What is missing, or no number, is unknown: never idle, never zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r"(?:\{(.*)\})? (\S+)")
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_QUERIES = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
_HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
_CONFIG = ("vllm:cache_config_info", "sglang:cache_config_info")
_STARTED = (
    "process_start_time_seconds",
    "vllm:prefix_cache_queries_created",
    "vllm:prompt_tokens_created",
    "vllm:num_preemptions_created",
)
"""Metrics of an engine that tell, in Unix seconds, when its process or its metrics began; the first that is there."""
SGLANG_ALGORITHM = "sglang_sha256"
"""What stands for the hash algorithm of SGLang: a chain of its own, which is none of vLLM's."""


@dataclass(frozen=True, slots=True)
class Load:
    """One rank's load at the time of a scrape.

    Attributes:
        running: Requests in the batch.
        waiting: Requests in the queue.
        kv_usage: Share of KV blocks in use, 0 to 1.
        query_tokens, hit_tokens: Prompt tokens looked up in the prefix cache since the engine's start, and found; None
            where it does not tell.
    """

    running: int
    waiting: int
    kv_usage: float
    query_tokens: int | None = None
    hit_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What `cache_config_info` says of one rank; None where it says nothing.

    Attributes:
        block_size: Tokens per block.
        num_blocks: KV blocks of the GPU tier.
        algorithm: Prefix caching hash algorithm.
        prefix_caching: Whether there is a prefix cache.
        hash_unit: Tokens that one hash is made of, where that may be less than a block (vLLM's `prefix_match_unit`).
    """

    block_size: int | None = None
    num_blocks: int | None = None
    algorithm: str | None = None
    prefix_caching: bool | None = None
    hash_unit: int | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """The load of all ranks together; None where no rank tells.

    Attributes:
        running: Sum of requests in the batches.
        waiting: Sum of requests in the queues.
        kv_usage: Mean share of KV blocks in use, 0 to 1.
        query_tokens, hit_tokens: Sums of their counters.
    """

    running: int | None
    waiting: int | None
    kv_usage: float | None
    query_tokens: int | None = None
    hit_tokens: int | None = None


def loads(text: str) -> dict[str, Load]:
    """Return the load of each rank by its `engine` label ("" where there is none); only ranks with all three values."""
    running, waiting, usage = (_by_engine(text, names) for names in (_RUNNING, _WAITING, _USAGE))
    queries, hits = (_by_engine(text, names) for names in (_QUERIES, _HITS))
    told = queries.keys() & hits.keys()
    return {
        engine: Load(
            _requests(text, running[engine]),
            _requests(text, waiting[engine]),
            min(1.0, max(usage[engine])),
            *((int(sum(queries[engine])), int(sum(hits[engine]))) if engine in told else ()),
        )
        for engine in running.keys() & waiting.keys() & usage.keys()
    }


def totals(text: str) -> Totals:
    """Return the load of all ranks together."""
    running, waiting, usage = (_by_engine(text, names) for names in (_RUNNING, _WAITING, _USAGE))
    queries, hits = (_by_engine(text, names) for names in (_QUERIES, _HITS))
    shares = [min(1.0, max(values)) for values in usage.values()]
    return Totals(
        sum(_requests(text, values) for values in running.values()) if running else None,
        sum(_requests(text, values) for values in waiting.values()) if waiting else None,
        sum(shares) / len(shares) if shares else None,
        int(sum(map(sum, queries.values()))) if queries and hits else None,
        int(sum(map(sum, hits.values()))) if queries and hits else None,
    )


def cache_configs(text: str) -> dict[str, CacheConfig]:
    """Return the cache configuration of each rank by its `engine` label ("" where there is none)."""
    if is_sglang(text):
        return _sglang_configs(text)
    found = {}
    for labels, _ in samples(text, _CONFIG):
        caching = labels.get("enable_prefix_caching")
        found[labels.get("engine", "")] = CacheConfig(
            block_size=_positive(labels.get("block_size")),
            num_blocks=_positive(labels.get("num_gpu_blocks")),
            algorithm=labels.get("prefix_caching_hash_algo") or None,
            prefix_caching={"true": True, "false": False}.get((caching or "").lower()),
            hash_unit=_positive(labels.get("hash_block_size")) or _positive(labels.get("prefix_match_unit")),
        )
    return found


def started_s(text: str) -> float | None:
    """Return when the engine's process began, in Unix seconds; None where nothing tells it."""
    return min((value for _, value in samples(text, _STARTED)), default=None)


def is_sglang(text: str) -> bool:
    """Tell whether these are SGLang's metrics."""
    return "\nsglang:" in text or text.startswith("sglang:")


def _sglang_configs(text: str) -> dict[str, CacheConfig]:
    """SGLang tells pages as labels of `cache_config_info`, or (from 0.5.11 on) as gauges of their own."""
    found: dict[str, CacheConfig] = {}
    for labels, _ in samples(text, ("sglang:cache_config_info",)):
        sizes = (_positive(labels.get("page_size")), _positive(labels.get("num_pages")))
        found[_rank_of(labels)] = CacheConfig(*sizes, SGLANG_ALGORITHM)
    sizes_of, pages_of, tokens_of = (
        _by_engine(text, (f"sglang:{name}",)) for name in ("page_size", "num_pages", "max_total_num_tokens")
    )
    for rank in sizes_of.keys() | pages_of.keys() | tokens_of.keys():
        known = found.get(rank, CacheConfig())
        size = known.block_size or (int(max(sizes_of[rank])) if rank in sizes_of else None)
        pages = known.num_blocks or (int(max(pages_of[rank])) if rank in pages_of else None)
        if not pages and size and rank in tokens_of:
            pages = int(max(tokens_of[rank])) // size
        found[rank] = CacheConfig(size or None, pages or None, SGLANG_ALGORITHM)
    return found


def _requests(text: str, values: list[float]) -> int:
    """Return a rank's requests from its lines.

    In vLLM a line is a served model, and the rank's requests are their sum. In SGLang lines are workers of one rank
    that say the same, or priorities beside their sum.
    """
    return int(max(values) if is_sglang(text) else sum(values))


def _by_engine(text: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for labels, value in samples(text, names):
        values.setdefault(_rank_of(labels), []).append(value)
    return values


def _rank_of(labels: dict[str, str]) -> str:
    return labels.get("engine") or labels.get("dp_rank") or ""


def samples(text: str, names: tuple[str, ...]) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each line of the first of these metrics that is there."""
    for name in names:
        found = False
        for line in _lines(text, name):
            match = _SAMPLE.match(line, len(name))
            if match is None:
                continue  # another metric whose name begins with this one
            try:
                value = float(match[2])
            except ValueError:
                continue
            if math.isfinite(value) and 0 <= value < 2**53:
                found = True
                yield dict(_LABEL.findall(match[1] or "")), value
        if found:
            return  # the later names are what older releases called the same


def _lines(text: str, name: str) -> Iterator[str]:
    # Searched as plain text: a regular expression over the whole of it (200 KB) takes milliseconds, twice a second.
    start = 0 if text.startswith(name) else text.find("\n" + name) + 1
    while start or text.startswith(name):
        end = text.find("\n", start)
        yield text[start:] if end < 0 else text[start:end]
        start = text.find("\n" + name, start) + 1
        if not start:
            return


def _positive(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and 0 < int(text) < 2**40 else None
