"""Asks one engine all that the checks look at, once. What it found is plain data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from replica.agent.engine import RankSource, rank_sources
from replica.agent.probe import probe_tokens
from replica.agent.proof import SchemeProof
from router.kv.engine_metrics import CacheConfig, cache_configs
from router.kv.engine_models import parse_models
from router.kv.registration import RegisteredModel
from router.tools.doctor_heard import Heard
from router.tools.doctor_http import Answer, Server
from router.tools.doctor_text import Probe, Sides, compare

PROBE_TIMEOUT_S = 30.0
DEFAULT_BLOCK_SIZE = 16


@dataclass(slots=True)
class EngineFacts:
    """What an engine says and does.

    Attributes:
        name: The replica's id, or the engine's address.
        health: Its answer to /health.
        sources: Its answer to /kv_event_sources; None where it has no such path.
        usage: `usage` of a probe that was sent twice, the second time; None where it was not sent or failed.
        usage_error: Why it failed.
        probe_hit_tokens: What the cache could have given the second probe at most.
        texts: Probe texts as rendered here and there.
        heard: By rank; empty where nobody listened.
    """

    name: str
    url: str
    health: Answer
    version: str = ""
    models: tuple[RegisteredModel, ...] = ()
    models_error: str = ""
    caches: dict[str, CacheConfig] = field(default_factory=dict)
    metrics_error: str = ""
    sources: dict[str, Any] | None = None
    ranks: tuple[RankSource, ...] = ()
    usage: dict[str, Any] | None = None
    usage_error: str = ""
    probe_hit_tokens: int = 0
    texts: tuple[Sides, ...] = ()
    heard: dict[int, Heard] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        """Whether it answers HTTP at all."""
        return self.health.status != 0

    @property
    def cache(self) -> CacheConfig:
        """The first rank's cache configuration; empty where the engine tells none."""
        return next(iter(self.caches.values()), CacheConfig())

    @property
    def base_model(self) -> RegisteredModel | None:
        """The first model that is no adapter."""
        return next((model for model in self.models if model.parent is None), None)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What to do with an engine besides asking.

    Attributes:
        probes: Texts to compare; empty: none.
        ours: Gives our token ids of a probe, or why there are none.
        generate: Send a probe of one generated token, twice.
        listen: Listen to its events meanwhile.
        seed: The engine's PYTHONHASHSEED, where the operator told it.
        events: Address of rank 0's event socket, where the operator named it.
        replay: The same of the replay socket.
    """

    probes: Sequence[Probe] = ()
    ours: Any = None
    generate: bool = True
    listen: bool = False
    seed: str | None = None
    events: str | None = None
    replay: str | None = None


def examine(server: Server, name: str, wishes: Wishes, rng: random.Random) -> EngineFacts:
    """Ask an engine everything. Raises nothing for what it answers."""
    facts = EngineFacts(name, server.url, server.get("/health"))
    if not facts.reachable:
        return facts
    facts.version = str(server.get("/version").object().get("version", ""))[:64]
    models = server.get("/v1/models")
    facts.models = (parse_models(models.body) if models.ok else None) or ()
    facts.models_error = "" if models.ok else models.why()
    metrics = server.get("/metrics")
    facts.metrics_error = "" if metrics.ok else metrics.why()
    facts.caches = cache_configs(metrics.body.decode(errors="replace")) if metrics.ok else {}
    sources = server.get("/kv_event_sources")
    facts.sources = sources.object() if sources.ok else None
    host = urlsplit(server.url).hostname or "127.0.0.1"
    facts.ranks = rank_sources(facts.sources or {}, sorted(facts.caches), host, wishes.events, wishes.replay)
    model = facts.base_model
    if model is not None:
        facts.texts = tuple(compare(server, model.name, probe, wishes.ours) for probe in wishes.probes)
        if wishes.generate:
            _generate(server, model.name, facts, wishes, rng)
    return facts


def _generate(server: Server, model: str, facts: EngineFacts, wishes: Wishes, rng: random.Random) -> None:
    several = len(facts.ranks) > 1
    for source in facts.ranks if wishes.listen else facts.ranks[:1]:
        cache = facts.caches.get(str(source.rank), facts.cache)
        block_size = cache.block_size or DEFAULT_BLOCK_SIZE
        probe = probe_tokens(block_size, rng)
        rank = source.rank if several else None

        def send(probe: list[int] = probe, rank: int | None = rank) -> str:
            answer = _complete(server, model, probe, rank)
            return "" if answer.ok else f"the probe (a completion of one token) {answer.why()}"

        # Without a prefix cache nothing is ever announced.
        if wishes.listen and source.events is not None and cache.prefix_caching is not False:
            proof = SchemeProof(cache.algorithm, cache.block_size, wishes.seed)
            from router.tools.doctor_events import listen  # it needs ZMQ, which a router's machine may lack

            heard = facts.heard[source.rank] = listen(source.events, source.replay, proof, probe, send)
            sent = heard.probe_sent
        else:
            sent = False
        if not sent and (error := send()):
            facts.usage_error = error
            return
        if facts.usage is None:
            # Some releases tell the figure only when it is not zero: the same prompt again finds its first block.
            again = _complete(server, model, probe, rank)
            usage = again.object().get("usage")
            facts.usage = usage if isinstance(usage, dict) else None
            facts.usage_error = "" if again.ok else f"the probe (a completion of one token) {again.why()}"
            facts.probe_hit_tokens = block_size


def _complete(server: Server, model: str, probe: list[int], rank: int | None) -> Answer:
    body = {"model": model, "prompt": probe, "max_tokens": 1, "temperature": 0}
    headers = {} if rank is None else {"x_data_parallel_rank": str(rank)}
    return server.post("/v1/completions", body, PROBE_TIMEOUT_S, **headers)
