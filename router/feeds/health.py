"""Asking an engine itself: is it alive, what does it serve, how is its cache, how busy is it.

Every question has a time limit and a size limit. A question that fails is *unknown*, never idle and never empty.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

import aiohttp

from router.fleet.facts import ServedModel

MAX_ANSWER_BYTES = 8 * 2**20
MAX_MODELS = 4_096
_SAMPLE = re.compile(r"(vllm:[a-z_]+)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What `/metrics` says; None is unknown. Counts are sums over ranks, the share is their mean.

    Attributes:
        kv_usage: Share of KV blocks in use, 0 to 1.
        block_size: Tokens a block.
        num_blocks: KV blocks on the GPU.
        prefix_caching: Whether the engine has a prefix cache.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    prefix_caching: bool | None = None


class EngineProber:
    """Asks engines over one HTTP session.

    Args:
        timeout_s: For each question as a whole: a probe that hangs is a failed one.
    """

    def __init__(self, session: aiohttp.ClientSession, timeout_s: float = 2.0) -> None:
        self._session = session
        self._timeout_s = timeout_s

    async def is_healthy(self, url: str) -> bool:
        """Ask `/health`. An engine without that path is alive: it answered."""
        status, _ = await self._get(f"{url}/health")
        return status is not None and (status < 400 or status == 404)

    async def models(self, url: str) -> tuple[ServedModel, ...] | None:
        """Ask `/v1/models`; None when that fails or needs a key."""
        status, body = await self._get(f"{url}/v1/models")
        return parse_models(body) if status == 200 else None

    async def figures(self, url: str) -> EngineFigures | None:
        """Ask `/metrics`; None when that fails."""
        status, body = await self._get(f"{url}/metrics")
        return parse_figures(body.decode(errors="replace")) if status == 200 else None

    async def _get(self, url: str) -> tuple[int | None, bytes]:
        try:
            async with asyncio.timeout(self._timeout_s), self._session.get(url, allow_redirects=False) as answer:
                body = bytearray()
                async for part in answer.content.iter_chunked(65_536):
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        return None, b""
                return answer.status, bytes(body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None, b""


def parse_models(body: bytes) -> tuple[ServedModel, ...] | None:
    """Return what `/v1/models` lists; None when it is not that."""
    try:
        entries = json.loads(body)["data"]
        found = [_model(entry) for entry in entries[:MAX_MODELS]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tuple(found) or None


def _model(entry: dict[str, Any]) -> ServedModel:
    name, length = entry["id"], entry.get("max_model_len")
    if not isinstance(name, str):
        raise TypeError("a model's id is a string")
    root, parent = entry.get("root"), entry.get("parent")
    return ServedModel(
        name,
        root if isinstance(root, str) else name,
        parent if isinstance(parent, str) else None,
        length if type(length) is int else None,
    )


def parse_figures(text: str) -> EngineFigures:
    """Read the lines of vLLM's `/metrics` that matter; what is missing or no number stays unknown."""
    values: dict[str, list[float]] = {}
    config: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        name, labels, value = sample.groups()
        if name == "vllm:cache_config_info":
            config = dict(_LABEL.findall(labels or ""))
        elif name in _GAUGES:
            try:
                number = float(value)
            except ValueError:
                continue
            if 0 <= number < 2**53:
                values.setdefault(name, []).append(number)
    running, waiting, usage = (values.get(name) for name in _GAUGES)
    return EngineFigures(
        int(sum(running)) if running else None,
        int(sum(waiting)) if waiting else None,
        sum(usage) / len(usage) if usage else None,
        _count(config.get("block_size")),
        _count(config.get("num_gpu_blocks")),
        {"true": True, "false": False}.get(config.get("enable_prefix_caching", "").lower()),
    )


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and int(text[:10]) > 0 else None
