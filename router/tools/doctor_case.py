"""All that the checks look at, collected once: the router, each engine, Redis."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.kv.keys import Keys
from router.tools.doctor_engine import EngineFacts, Wishes, examine
from router.tools.doctor_http import Answer, Server
from router.tools.doctor_redis import RedisFacts, look
from router.tools.doctor_text import (
    PROBES,
    Ids,
    Probe,
    Renderer,
    TokenizerError,
    local_renderer,
    router_renderer,
    without_renderer,
)

AT_ONCE = 16
PROOF_S = 10.0
"""An agent that has just seen our probe says so with its next lease, within a quarter of ten seconds."""
PROOF_POLL_S = 0.25
MASKED = "***"


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator told.

    Attributes:
        router: The router's admin server, or None.
        engine: The engine to look at alone, or None.
        api_key: For the engines' /v1.
        tokenizer: Folder to render with here, instead of the router's own rendering.
        chat_template: A template file beside it.
        block_size: What the operator believes the engine's to be.
        seed: The engine's PYTHONHASHSEED.
        events: Address of the engine's event socket, instead of what it says.
        replay: Address of its replay socket.
        redis: URL, where the router's is masked or another one is meant.
        secret: `registration.secret`.
        generate: Whether a probe of one generated token may be sent.
    """

    router: Server | None = None
    engine: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tokenizer: Path | None = None
    chat_template: Path | None = None
    block_size: int | None = None
    seed: str | None = field(default=None, repr=False)
    events: str | None = None
    replay: str | None = None
    redis: str | None = field(default=None, repr=False)
    secret: bytes | None = field(default=None, repr=False)
    generate: bool = True


@dataclass(slots=True)
class RouterFacts:
    """What the router says of itself.

    Attributes:
        health: Its answer to /healthz.
        replicas: Rows of /admin/replicas.
        config: /admin/config, secrets masked.
        admin_error: Why /admin can't be read, or empty.
    """

    health: Answer
    ready: Answer
    replicas: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    admin_error: str = ""

    @property
    def tenants(self) -> int:
        """How many tenants are configured."""
        tenants = self.config.get("tenants")
        return len(tenants) if isinstance(tenants, (list, tuple, dict)) else 0


@dataclass(slots=True)
class Case:
    """What there is to judge.

    Attributes:
        router: None when an engine was given alone.
        engines: Each replica's engine, in the router's order; or the one that was given.
        redis: None where there is none to look at.
        redis_unknown: Why the router's Redis was not looked at, where it has one.
    """

    options: Options
    router: RouterFacts | None = None
    engines: list[EngineFacts] = field(default_factory=list)
    redis: RedisFacts | None = None
    redis_unknown: str = ""

    @property
    def alone(self) -> bool:
        """Whether an engine is looked at without a router."""
        return self.router is None

    def row(self, name: str) -> dict[str, Any]:
        """Return a replica's row of /admin/replicas; empty where there is none."""
        rows = self.router.replicas if self.router is not None else []
        return next((row for row in rows if row.get("replica") == name), {})

    def units(self, name: str) -> list[dict[str, Any]]:
        """Return a replica's units as the router sees them."""
        units = self.row(name).get("units")
        return [unit for unit in units if isinstance(unit, dict)] if isinstance(units, list) else []


def collect(options: Options, rng: random.Random) -> Case:
    """Ask everybody.

    Raises:
        TokenizerError: The folder that the operator named can't be used.
    """
    case = Case(options)
    local = local_renderer(options.tokenizer, options.chat_template) if options.tokenizer is not None else None
    if options.router is not None:
        case.router = _router(options.router)
        _redis(case)
        renderer = local or _first(router_renderer(options.router), _configured(case.router.config))
        wishes = Wishes(PROBES, renderer, options.generate, listen=False, seed=options.seed)
        targets = [(str(row.get("replica")), str(row.get("url"))) for row in case.router.replicas]
    else:
        case.redis = look(options.redis, Keys(), options.secret) if options.redis is not None else None
        renderer = local or without_renderer("no --tokenizer was given")
        wishes = Wishes(
            PROBES if local else (),
            renderer,
            options.generate,
            listen=options.generate,
            seed=options.seed,
            events=options.events,
            replay=options.replay,
        )
        targets = [("", str(options.engine))]
    rngs = [random.Random(rng.getrandbits(64)) for _ in targets]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        case.engines = list(
            pool.map(
                lambda target, own: examine(Server(target[1], options.api_key), target[0], wishes, own), targets, rngs
            )
        )
    if options.router is not None and options.generate:
        _await_proof(case, options.router)
    return case


def _await_proof(case: Case, server: Server) -> None:
    """Look again at a replica that had shown no root block: our probe was one."""
    deadline_s = time.monotonic() + PROOF_S
    while case.router is not None and time.monotonic() < deadline_s:
        reasons = [unit.get("reason") for engine in case.engines if engine.usage for unit in case.units(engine.name)]
        if not any("no root block" in str(reason) for reason in reasons):
            return
        time.sleep(PROOF_POLL_S)
        rows = server.get("/admin/replicas").object().get("replicas")
        if isinstance(rows, list):
            case.router.replicas = [row for row in rows if isinstance(row, dict)]


def _router(server: Server) -> RouterFacts:
    facts = RouterFacts(server.get("/healthz"), Answer(0))
    if facts.health.status == 0:
        return facts
    facts.ready = server.get("/readyz")
    replicas, config = server.get("/admin/replicas"), server.get("/admin/config")
    rows = replicas.object().get("replicas")
    facts.replicas = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    facts.config = config.object()
    facts.admin_error = next((answer.why() for answer in (replicas, config) if not answer.ok), "")
    return facts


def _redis(case: Case) -> None:
    options = case.options
    configured = case.router.config.get("redis") if case.router is not None else None
    section = configured if isinstance(configured, dict) else {}
    url = options.redis or section.get("url")
    if not isinstance(url, str):
        return
    if MASKED in url:
        case.redis_unknown = "the router hides the password of its Redis: give --redis or WARMROUTE_DOCTOR_REDIS"
        return
    case.redis = look(url, Keys(section.get("namespace", "wr"), section.get("lanes", 16)), options.secret)


def _configured(config: dict[str, Any]) -> Renderer:
    """Return a renderer with the folders that the router's configuration names, where they are here too."""
    renderers: dict[str, Renderer] = {}
    for model in config.get("models") or []:
        if isinstance(model, dict) and model.get("tokenizer"):
            template = model.get("chat_template")
            try:
                renderer = local_renderer(Path(model["tokenizer"]), Path(template) if template else None)
            except (TokenizerError, OSError):
                continue
            renderers[str(model.get("name"))] = renderer

    def render(model: str, probe: Probe) -> Ids:
        renderer = renderers.get(model)
        return renderer(model, probe) if renderer else Ids(None, "")

    return render


def _first(first: Renderer, second: Renderer) -> Renderer:
    def render(model: str, probe: Probe) -> Ids:
        ids = first(model, probe)
        if ids.ids is not None or ids.reason in ("template_error", "no_template"):
            return ids
        other = second(model, probe)
        return other if other.ids is not None else ids

    return render
