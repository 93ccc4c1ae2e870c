"""What is judged of each engine: that it answers, caches, tells its figures, and renders as we do. Pure."""

from __future__ import annotations

from collections import defaultdict

from router.tools.doctor_case import Case
from router.tools.doctor_engine import EngineFacts
from router.tools.doctor_report import Finding, Status
from router.tools.doctor_text import Sides

SHOWN_IDS = 6


def reachable(case: Case) -> list[Finding]:
    """Every engine answers HTTP and is healthy."""
    findings = []
    for engine in case.engines:
        if engine.health.ok:
            version = f"version {engine.version}" if engine.version else "version not told"
            findings.append(Finding(Status.FINE, f"healthy at {engine.url}, {version}", engine.name))
        elif not engine.reachable and case.row(engine.name).get("state") == "ready":
            remedy = "run the doctor where routers run: this engine's checks are left out here"
            detail = f"{engine.url} can't be reached from here ({engine.health.error}), though the router can"
            findings.append(Finding(Status.WARNING, detail, engine.name, remedy))
        else:
            findings.append(Finding(Status.WRONG, f"{engine.url}/health: {engine.health.why()}", engine.name))
    return findings


def models(case: Case) -> list[Finding]:
    """Every engine lists what it serves, and the router's models are served by somebody."""
    findings = []
    for engine in _answering(case):
        if engine.models_error:
            remedy = (
                "give the engine's key: --api-key-file FILE" if engine.models_error.startswith("answered 401") else ""
            )
            findings.append(Finding(Status.WRONG, f"/v1/models {engine.models_error}", engine.name, remedy))
        elif engine.base_model is None:
            findings.append(Finding(Status.WRONG, "/v1/models lists no model", engine.name))
        else:
            findings.append(Finding(Status.FINE, ", ".join(model.name for model in engine.models)[:200], engine.name))
    served = {model.name for engine in case.engines for model in engine.models}
    if case.router is not None and served:
        for model in case.router.config.get("models") or []:
            if model.get("name") not in served:
                detail = f"the router knows the model {model.get('name')!r}, which no engine serves"
                remedy = f"write one of these as models[].name: {', '.join(sorted(served))[:200]}"
                findings.append(Finding(Status.WRONG, detail, remedy=remedy))
    return findings


def cache_on(case: Case) -> list[Finding]:
    """Every engine keeps a prefix cache, and a prompt that is sent twice is found in it."""
    findings = []
    for engine in _answering(case):
        cached = _cached_tokens(engine)
        if engine.metrics_error:
            findings.append(
                Finding(Status.WRONG, f"/metrics {engine.metrics_error}", engine.name, "allow GET /metrics")
            )
        elif engine.cache.prefix_caching is False:
            findings.append(Finding(Status.WRONG, "the engine runs without a prefix cache", engine.name))
        elif cached is not None and cached < engine.probe_hit_tokens:
            detail = f"the same prompt sent twice found {cached} cached tokens instead of {engine.probe_hit_tokens}"
            remedy = "its cache may be full of running requests; ask again when it is less busy"
            findings.append(Finding(Status.WARNING, detail, engine.name, remedy))
        elif engine.cache.prefix_caching is None:
            findings.append(Finding(Status.SKIPPED, "the engine does not say (vllm:cache_config_info)", engine.name))
        else:
            size = f"on, {engine.cache.num_blocks} blocks" if engine.cache.num_blocks else "on"
            findings.append(Finding(Status.FINE, size, engine.name))
    return findings


def token_details(case: Case) -> list[Finding]:
    """Every engine reports how many tokens came from its cache."""
    findings = []
    for engine in _answering(case):
        if engine.usage_error:
            remedy = "give the engine's key: --api-key-file FILE" if "401" in engine.usage_error else "see its log"
            findings.append(Finding(Status.WRONG, engine.usage_error, engine.name, remedy))
        elif engine.usage is None:
            why = "no probe was sent (--no-probe)" if not case.options.generate else "no model to send a probe to"
            findings.append(Finding(Status.SKIPPED, why, engine.name))
        elif (cached := _cached_tokens(engine)) is None:
            findings.append(Finding(Status.WRONG, "usage has no prompt_tokens_details.cached_tokens", engine.name))
        else:
            findings.append(Finding(Status.FINE, f"told: {cached} cached tokens of a repeated prompt", engine.name))
    return findings


def tokenizer(case: Case) -> list[Finding]:
    """A plain prompt has the same token ids on both sides."""
    return _texts(case, chats=False)


def template(case: Case) -> list[Finding]:
    """Chats have the same token ids on both sides."""
    return _texts(case, chats=True)


def lora_paths(case: Case) -> list[Finding]:
    """Every adapter has a path, and it is known in which replicas it is loaded."""
    homes: defaultdict[str, dict[str, str]] = defaultdict(dict)
    findings = []
    answering = [engine for engine in _answering(case) if engine.models]
    for engine in answering:
        rows = case.row(engine.name).get("models") or []
        known = {row.get("name"): row.get("root") for row in rows if isinstance(row, dict)}
        for model in engine.models:
            if model.parent is None:
                continue
            homes[model.name][engine.name] = model.root
            if not model.root or model.root == model.name:
                detail = f"adapter {model.name}: /v1/models does not tell its path, which its blocks' hashes contain"
                findings.append(Finding(Status.WRONG, detail, engine.name))
            elif known and known.get(model.name) != model.root:
                had = f"{known[model.name]!r}" if model.name in known else "no such adapter"
                detail = f"adapter {model.name} is loaded from {model.root!r}, the router has {had}"
                findings.append(
                    Finding(Status.WRONG, detail, engine.name, "wait for the next look, or restart its agent")
                )
    for name, paths in sorted(homes.items()):
        missing = [engine.name for engine in answering if engine.name not in paths]
        if missing:
            detail = f"adapter {name} is on {len(paths)} of {len(answering)} replicas, not on {', '.join(missing[:5])}"
            findings.append(Finding(Status.WARNING, detail, remedy="load it everywhere, or expect its load on these"))
        if len(set(paths.values())) > 1:
            told = ", ".join(f"{where}: {path}" for where, path in sorted(paths.items())[:4])
            detail = f"adapter {name} has another path on each replica, so its blocks have other hashes there ({told})"
            remedy = "mount it at one path everywhere: one chain is then computed instead of several"
            findings.append(Finding(Status.WARNING, detail, remedy=remedy))
    if homes and not findings:
        findings.append(Finding(Status.FINE, f"{len(homes)} adapters, the same paths everywhere"))
    return findings


def _answering(case: Case) -> list[EngineFacts]:
    return [engine for engine in case.engines if engine.reachable]


def _cached_tokens(engine: EngineFacts) -> int | None:
    details = (engine.usage or {}).get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def _texts(case: Case, chats: bool) -> list[Finding]:
    findings = []
    for engine in _answering(case):
        sides = [item for item in engine.texts if ("messages" in item.probe.fields) is chats]
        judged = [_judge(item, engine.name) for item in sides]
        worst = max((finding.status for finding in judged), default=Status.SKIPPED)
        if worst is Status.FINE:
            tokens = sum(len(item.theirs.ids or ()) for item in sides)
            findings.append(Finding(Status.FINE, f"{len(sides)} probes, {tokens} tokens, all equal", engine.name))
        elif not sides:
            findings.append(Finding(Status.SKIPPED, "give --tokenizer DIR to compare with", engine.name))
        else:
            findings += [finding for finding in judged if finding.status is worst]
    return findings


def _judge(sides: Sides, name: str) -> Finding:
    ours, theirs, probe = sides.ours, sides.theirs, sides.probe.name
    if sides.at is not None and ours.ids is not None and theirs.ids is not None:
        at = sides.at
        detail = f"{probe}: token {at} differs (here {len(ours.ids)} tokens, there {len(theirs.ids)})"
        lines = (
            f"here   {_shown(ours.ids, at)}  {sides.around_ours!r}",
            f"engine {_shown(theirs.ids, at)}  {sides.around_theirs!r}",
        )
        return Finding(Status.WRONG, detail, name, lines=lines)
    if ours.ids is not None and theirs.ids is not None:
        return Finding(Status.FINE, f"{probe}: {len(ours.ids)} tokens, equal", name)
    if ours.ids is None and theirs.ids is None:
        return Finding(Status.SKIPPED, f"{probe}: both refuse it ({ours.reason}; engine: {theirs.reason})", name)
    if ours.ids is None:
        if ours.reason in ("no_tokenizer", "no_model", ""):
            detail = f"{probe}: no tokenizer here for this model: a replica tokenises its prompts, or load places them"
            return Finding(Status.WARNING, detail, name, "name its folder: models[].tokenizer: DIR")
        return Finding(Status.WRONG, f"{probe}: the engine renders it, here it failed: {ours.reason}", name)
    detail = f"{probe}: rendered here, but the engine's /tokenize {theirs.reason}"
    return Finding(Status.WARNING, detail, name, "see whether the engine was started with the model's chat template")


def _shown(ids: list[int], at: int) -> str:
    cut = ids[at : at + SHOWN_IDS]
    return f"[{at}:] {cut}" if cut else f"[{at}:] (ends)"
