"""Asking an engine itself: is it alive, what does it serve, how is its cache, how busy is it.

Every question has a time limit and a size limit. A question that fails is *unknown*, never idle and never empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from router.fleet.facts import ServedModel
from router.kv.engine_metrics import CacheConfig, cache_configs, totals
from router.kv.engine_models import parse_models
from router.tls import EngineTls

MAX_ANSWER_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What `/metrics` says; None is unknown. Counts are sums over ranks, the share is their mean.

    Attributes:
        kv_usage: Share of KV blocks in use, 0 to 1.
        block_size: Tokens a block.
        num_blocks: KV blocks on the GPU.
        prefix_caching: Whether the engine has a prefix cache.
        query_tokens, hit_tokens: Prompt tokens looked up in the prefix caches since the engine's start, and found.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    prefix_caching: bool | None = None
    query_tokens: int | None = None
    hit_tokens: int | None = None


class EngineProber:
    """Asks engines over one HTTP session.

    Args:
        timeout_s: For each question as a whole: a probe that hangs is a failed one.
        tls: How to speak to engines at https:// addresses; None: by the system's CAs.
        headers: Sent with each question: the engines' API key. May change.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        timeout_s: float = 2.0,
        tls: EngineTls | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._tls = tls
        self._headers = {} if headers is None else headers
        self._session = session
        self._timeout_s = timeout_s

    async def is_healthy(self, url: str) -> bool:
        """Ask `/health`. An engine without that path is alive: it answered."""
        status, _ = await self._get(f"{url}/health")
        return status is not None and (status < 400 or status == 404)

    async def models(self, url: str) -> tuple[ServedModel, ...] | None:
        """Ask `/v1/models`; None when that fails or needs a key."""
        status, body = await self._get(f"{url}/v1/models")
        return served_models(body) if status == 200 else None

    async def figures(self, url: str) -> EngineFigures | None:
        """Ask `/metrics`; None when that fails."""
        status, body = await self._get(f"{url}/metrics")
        return parse_figures(body.decode(errors="replace")) if status == 200 else None

    async def _get(self, url: str) -> tuple[int | None, bytes]:
        try:
            secured = self._tls.options(url) if self._tls is not None else {}
            asked = self._session.get(url, headers=self._headers, allow_redirects=False, **secured)
            async with asyncio.timeout(self._timeout_s), asked as answer:
                body = bytearray()
                async for part in answer.content.iter_chunked(65_536):
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        return None, b""
                return answer.status, bytes(body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None, b""


def served_models(body: bytes) -> tuple[ServedModel, ...] | None:
    """Return what `/v1/models` lists; None when it is not that, or lists nothing."""
    found = parse_models(body) or ()
    return tuple(ServedModel(m.name, m.root, m.parent, m.max_model_len) for m in found) or None


def parse_figures(text: str) -> EngineFigures:
    """Return what vLLM's `/metrics` says of all ranks together. Their caches are alike: the first one's is told."""
    load = totals(text)
    caches = cache_configs(text)
    cache = caches[min(caches)] if caches else CacheConfig()
    return EngineFigures(
        load.running,
        load.waiting,
        load.kv_usage,
        cache.block_size,
        cache.num_blocks,
        cache.prefix_caching,
        load.query_tokens,
        load.hit_tokens,
    )
