"""The engine's HTTP side: what it serves, how its cache is made, where its events are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from replica.agent import sglang_facts
from replica.errors import EngineError
from router.kv.engine_metrics import CacheConfig, cache_configs, is_sglang, started_s
from router.kv.engine_models import parse_models
from router.kv.registration import RegisteredModel

_TIMEOUT_S = 5.0
_OWNED_BY_SGLANG = re.compile(rb'"owned_by"\s*:\s*"sglang"')
_MAX_ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RankSource:
    """Where one rank's events come from; None where it publishes none or keeps none for replay."""

    rank: int
    events: str | None
    replay: str | None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of itself.

    Attributes:
        engine: Which engine it is: a name of `replica.agent.adapters`.
        version: Its version, "" where it does not say.
        models: Served models and adapters.
        ranks: Its data-parallel ranks with their sockets, at least one.
        caches: Cache configuration by `engine` label.
        started_s: When its process began, as its metrics tell (Unix time); None where they do not.
    """

    engine: str
    version: str
    models: tuple[RegisteredModel, ...]
    ranks: tuple[RankSource, ...]
    caches: dict[str, CacheConfig]
    started_s: float | None = None

    def cache(self, rank: int) -> CacheConfig:
        """Return a rank's cache configuration; an empty one where the engine tells none."""
        if len(self.ranks) == 1 and len(self.caches) == 1:
            return next(iter(self.caches.values()))
        return self.caches.get(str(rank)) or self.caches.get("") or CacheConfig()


class Engine:
    """A client of one engine.

    Args:
        session: Shared HTTP session.
        url: The engine's base URL.
        api_key: For /v1, where the engine asks for one.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str | None) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def healthy(self, timeout_s: float) -> bool:
        """Return whether /health answers 200 in time."""
        try:
            await self._request("GET", "/health", timeout_s)
        except EngineError:
            return False
        return True

    async def metrics(self, timeout_s: float) -> str:
        """Return the text of /metrics. Raises EngineError."""
        return (await self._request("GET", "/metrics", timeout_s)).decode(errors="replace")

    async def models(self) -> tuple[RegisteredModel, ...]:
        """Return what the engine serves. Raises EngineError."""
        return self._parsed(await self._request("GET", "/v1/models", _TIMEOUT_S))

    def _parsed(self, listed: bytes) -> tuple[RegisteredModel, ...]:
        found = parse_models(listed)
        if found is None:
            raise EngineError(f"{self._url}/v1/models is no list of models")
        return found

    async def facts(
        self, events: str | None, replay: str | None, kind: str = "auto", untold: tuple[str, str] | None = None
    ) -> EngineFacts:
        """Return all that the engine says of itself.

        Args:
            events: Address of rank 0's event socket, where the operator named one; else the engine is asked.
            replay: The same for the replay socket.
            kind: Which engine it is, or `auto`: it shows in its models and metrics.
            untold: Addresses of both, for an engine that does not say where its sockets are.

        Raises:
            EngineError: It did not answer.
        """
        listed = await self._request("GET", "/v1/models", _TIMEOUT_S)
        models = self._parsed(listed)
        metrics = await self._optional_metrics()
        caches = cache_configs(metrics)
        if kind == "auto":
            kind = "sglang" if is_sglang(metrics) or _OWNED_BY_SGLANG.search(listed) else "vllm"
        if kind == "sglang":
            about = await self._first_json(sglang_facts.PATHS)
            sources = sglang_facts.event_sources(about)
            cache = sglang_facts.cache_config(about)
            # Metrics tell nothing of whether there is a prefix cache, and may be off.
            caches = {rank: replace(each, prefix_caching=cache.prefix_caching) for rank, each in caches.items()}
            caches = caches or {"": cache}
        else:
            about = await self._optional_json("/version")
            sources = await self._optional_json("/kv_event_sources")
        if untold is not None and not sources:
            events, replay = events or untold[0], replay or untold[1]
        host = urlsplit(self._url).hostname or "127.0.0.1"
        return EngineFacts(
            engine=kind,
            version=str(about.get("version", ""))[:256],
            models=models,
            ranks=rank_sources(sources, sorted(caches), host, events, replay),
            caches=caches,
            started_s=started_s(metrics),
        )

    async def complete(self, model: str, token_ids: list[int], rank: int | None, timeout_s: float) -> None:
        """Send a completion of one token. Raises EngineError."""
        body = {"model": model, "prompt": token_ids, "max_tokens": 1, "temperature": 0}
        headers = {"content-type": "application/json"}
        if rank is not None:
            headers["x-data-parallel-rank"] = str(rank)
        await self._request("POST", "/v1/completions", timeout_s, json.dumps(body).encode(), headers)

    async def _optional_metrics(self) -> str:
        try:
            return await self.metrics(_TIMEOUT_S)
        except EngineError as error:
            if error.status is None or error.status >= 500:
                raise  # silence and trouble are no answer: the path may well be there
            return ""

    async def _optional_json(self, path: str) -> dict[str, Any]:
        try:
            answer = await self._json(path)
        except EngineError as error:
            if error.status is None:
                raise  # silence is no answer: the path may well be there
            return {}
        return answer if isinstance(answer, dict) else {}

    async def _first_json(self, paths: Sequence[str]) -> dict[str, Any]:
        for path in paths:
            answer = await self._optional_json(path)
            if answer:
                return answer
        return {}

    async def _json(self, path: str) -> Any:
        answer = await self._request("GET", path, _TIMEOUT_S)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self._url}{path} did not answer JSON") from error

    async def _request(
        self, method: str, path: str, timeout_s: float, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method, self._url + path, data=body, headers={**self._headers, **(headers or {})}, timeout=timeout
            ) as response:
                answer = bytearray()
                async for chunk in response.content.iter_any():
                    answer += chunk
                    if len(answer) > _MAX_ANSWER_BYTES:
                        raise EngineError(f"{self._url}{path} answers more than {_MAX_ANSWER_BYTES} bytes")
                if response.status != 200:
                    raise EngineError(f"{self._url}{path} answered {response.status}", response.status)
                return bytes(answer)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{self._url}{path} did not answer: {type(error).__name__}") from error


def rank_sources(
    sources: dict[str, Any], engines: list[str], host: str, events: str | None, replay: str | None
) -> tuple[RankSource, ...]:
    """Return each rank's sockets.

    Args:
        sources: `/kv_event_sources`: rank to publisher configuration; empty where the engine has no such path.
        engines: `engine` labels in its metrics: one a rank.
        host: The engine's host: what it binds to as `*` is reached there.
        events: The operator's address of the first rank's event socket; overrides what the engine says.
        replay: The same for the replay socket.
    """
    listed = {int(key): value for key, value in sources.items() if key.isascii() and key.isdigit()}
    listed = {rank: value for rank, value in listed.items() if isinstance(value, dict)}
    ranks = sorted(listed) or sorted(int(e) for e in engines if e.isascii() and e.isdigit()) or [0]
    found = []
    for rank in ranks:
        config = listed.get(rank, {})
        if config.get("enable_kv_cache_events") is False or config.get("publisher") == "null":
            config = {}
        # vLLM puts rank r on port + r, on both sockets. One rank alone is where the operator says that it is.
        offset = rank if len(ranks) > 1 else 0
        found.append(
            RankSource(
                rank=rank,
                events=shift_port(events, offset) if events else _reachable(config.get("endpoint"), host),
                replay=shift_port(replay, offset) if replay else _reachable(config.get("replay_endpoint"), host),
            )
        )
    return tuple(found)


def shift_port(address: str, offset: int) -> str:
    """Return a tcp:// address with its port moved; anything else as it is."""
    if not offset or not address.startswith("tcp://"):
        return address
    head, _, port = address.rpartition(":")
    return f"{head}:{int(port) + offset}"


def _reachable(address: object, host: str) -> str | None:
    if not isinstance(address, str) or "://" not in address:
        return None
    shown = f"[{host}]" if ":" in host else host
    for anywhere in ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:"):
        if address.startswith(anywhere):
            return f"tcp://{shown}:{address[len(anywhere) :]}"
    return address
