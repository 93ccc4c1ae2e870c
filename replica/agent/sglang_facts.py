"""What SGLang tells of itself in its own way: `/server_info` (`/get_server_info` before 2026). Pure.

The answer holds the server's arguments, secrets among them: nothing but what is read here is kept.
"""

from __future__ import annotations

import json
from typing import Any

from router.kv.engine_metrics import SGLANG_ALGORITHM, CacheConfig

PATHS = ("/server_info", "/get_server_info")
_MAX_RANKS = 4_096


def event_sources(info: dict[str, Any]) -> dict[str, Any]:
    """Return each rank's publisher in the form of vLLM's `/kv_event_sources`; empty where there is none.

    Rank r binds to port + r, for both sockets.
    """
    config = info.get("kv_events_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(config, dict) or config.get("publisher", "null") == "null":
        return {}
    ranks = _count(info.get("dp_size")) or 1
    return {
        str(rank): {
            "endpoint": _moved(config.get("endpoint", "tcp://*:5557"), rank),
            "replay_endpoint": _moved(config.get("replay_endpoint"), rank),
        }
        for rank in range(min(ranks, _MAX_RANKS))
    }


def cache_config(info: dict[str, Any]) -> CacheConfig:
    """Return what it says of its cache, for engines that run without `--enable-metrics`."""
    size, tokens = _count(info.get("page_size")), _count(info.get("max_total_num_tokens"))
    caching = info.get("disable_radix_cache")
    return CacheConfig(
        block_size=size,
        num_blocks=tokens // size if tokens and size else None,
        algorithm=SGLANG_ALGORITHM,
        prefix_caching=not caching if isinstance(caching, bool) else None,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 2**40 else None


def _moved(address: object, rank: int) -> str | None:
    if not isinstance(address, str):
        return None
    head, _, port = address.rpartition(":")
    if not address.startswith("tcp://") or not (port.isascii() and port.isdigit()):
        return address
    return f"{head}:{int(port) + rank}"
