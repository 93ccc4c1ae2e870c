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
_RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_CONFIG = ("vllm:cache_config_info",)


@dataclass(frozen=True, slots=True)
class Load:
    """One rank's load at the time of a scrape.

    Attributes:
        running: Requests in the batch.
        waiting: Requests in the queue.
        kv_usage: Share of KV blocks in use, 0 to 1.
    """

    running: int
    waiting: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What `cache_config_info` says of one rank; None where it says nothing.

    Attributes:
        block_size: Tokens per block.
        num_blocks: KV blocks of the GPU tier.
        algorithm: Prefix caching hash algorithm.
        prefix_caching: Whether there is a prefix cache.
    """

    block_size: int | None = None
    num_blocks: int | None = None
    algorithm: str | None = None
    prefix_caching: bool | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """The load of all ranks together; None where no rank tells.

    Attributes:
        running: Sum of requests in the batches.
        waiting: Sum of requests in the queues.
        kv_usage: Mean share of KV blocks in use, 0 to 1.
    """

    running: int | None
    waiting: int | None
    kv_usage: float | None


def loads(text: str) -> dict[str, Load]:
    """Return the load of each rank by its `engine` label ("" where there is none); only ranks with all three values."""
    running, waiting, usage = (_by_engine(text, names) for names in (_RUNNING, _WAITING, _USAGE))
    return {
        engine: Load(int(sum(running[engine])), int(sum(waiting[engine])), min(1.0, max(usage[engine])))
        for engine in running.keys() & waiting.keys() & usage.keys()
    }


def totals(text: str) -> Totals:
    """Return the load of all ranks together."""
    running, waiting, usage = (_by_engine(text, names) for names in (_RUNNING, _WAITING, _USAGE))
    shares = [min(1.0, max(values)) for values in usage.values()]
    return Totals(
        int(sum(map(sum, running.values()))) if running else None,
        int(sum(map(sum, waiting.values()))) if waiting else None,
        sum(shares) / len(shares) if shares else None,
    )


def cache_configs(text: str) -> dict[str, CacheConfig]:
    """Return the cache configuration of each rank by its `engine` label ("" where there is none)."""
    found = {}
    for labels, _ in _samples(text, _CONFIG):
        caching = labels.get("enable_prefix_caching")
        found[labels.get("engine", "")] = CacheConfig(
            block_size=_positive(labels.get("block_size")),
            num_blocks=_positive(labels.get("num_gpu_blocks")),
            algorithm=labels.get("prefix_caching_hash_algo") or None,
            prefix_caching={"true": True, "false": False}.get((caching or "").lower()),
        )
    return found


def _by_engine(text: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    # With several served models a rank has a line for each: its requests are their sum, its blocks are shared.
    values: dict[str, list[float]] = {}
    for labels, value in _samples(text, names):
        values.setdefault(labels.get("engine", ""), []).append(value)
    return values


def _samples(text: str, names: tuple[str, ...]) -> Iterator[tuple[dict[str, str], float]]:
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
