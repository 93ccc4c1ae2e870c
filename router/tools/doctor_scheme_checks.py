"""What is judged of block hashes and events: block size, scheme, and what an agent would hear. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from router.admin.remedies import START_AGENT
from router.tools.doctor_case import Case
from router.tools.doctor_engine import EngineFacts
from router.tools.doctor_heard import Heard
from router.tools.doctor_report import Finding, Status

BINDS = (
    "vLLM binds only an endpoint that holds * or begins with ipc://, to anything else it connects and nobody hears it: "
    'write "endpoint": "tcp://*:5557" in --kv-events-config; else open the port, or name it: --kv-events tcp://HOST:PORT'
)


def block_size(case: Case) -> list[Finding]:
    """Everybody means the same number of tokens by a block."""
    findings = []
    for engine in case.engines:
        said = engine.cache.block_size
        others = {
            "--block-size": case.options.block_size,
            "the router": next((_scheme(unit).get("block_size") for unit in case.units(engine.name)), None),
            "its events": next((heard.block_size for heard in engine.heard.values() if heard.block_size), None),
        }
        differing = {
            who: size for who, size in others.items() if size is not None and said is not None and size != said
        }
        if differing:
            told = ", ".join(f"{who}: {size}" for who, size in differing.items())
            findings.append(Finding(Status.WRONG, f"the engine says {said} tokens a block, {told}", engine.name))
        elif said is not None:
            findings.append(Finding(Status.FINE, f"{said} tokens a block", engine.name))
        elif engine.reachable:
            findings.append(Finding(Status.SKIPPED, "the engine does not say (vllm:cache_config_info)", engine.name))
    return findings


def proof(case: Case) -> list[Finding]:
    """The hashes computed here are those that the engine announces."""
    findings = []
    for engine in case.engines:
        if case.alone:
            findings += [_heard_proof(case, engine, rank, heard) for rank, heard in engine.heard.items()]
            continue
        static = case.row(engine.name).get("source") in ("static", "kubernetes", "dns")
        findings += [_unit_proof(unit, engine, static) for unit in case.units(engine.name)]
    return findings


def predictions(case: Case) -> list[Finding]:
    """What the router predicts is what the engine then announces and delivers, for each model and kind of request."""
    findings = []
    for engine in case.engines:
        for unit in case.units(engine.name):
            for record in unit.get("predictions") or []:
                name = f"{unit.get('unit')} {record.get('model')} ({record.get('kind')})"
                judged = f"{record.get('good')} held, {record.get('mismatched')} failed"
                if record.get("reason"):
                    detail = f"predictions fail ({judged}): {record.get('explanation') or record['reason']}"
                    findings.append(Finding(Status.WRONG, detail, name))
                elif record.get("good"):
                    findings.append(Finding(Status.FINE, judged, name))
    return findings


def tenants(case: Case) -> list[Finding]:
    """A hash that several tenants share resists collisions made on purpose."""
    findings = []
    several = case.router is None or case.router.tenants > 1
    for engine in case.engines:
        algorithm = engine.cache.algorithm
        if algorithm is None:
            continue
        if not algorithm.startswith("xxhash"):
            findings.append(Finding(Status.FINE, f"{algorithm} is collision resistant", engine.name))
        elif several:
            detail = f"{algorithm}: whoever shares this cache can make collisions in it on purpose"
            findings.append(Finding(Status.WARNING, detail, engine.name))
        else:
            findings.append(Finding(Status.FINE, f"{algorithm}: not collision resistant; one tenant only", engine.name))
    return findings


def events_published(case: Case) -> list[Finding]:
    """Every engine publishes its KV events over ZMQ."""
    findings = []
    for engine in case.engines:
        if not engine.reachable:
            continue
        sources = engine.sources
        if sources is None:
            findings.append(_unlisted(case, engine))
            continue
        silent = [source.rank for source in engine.ranks if source.events is None]
        if silent:
            ranks = "" if len(engine.ranks) == 1 else f"ranks {', '.join(map(str, silent))}: "
            static = case.row(engine.name).get("source") in ("static", "kubernetes", "dns")
            status = Status.WARNING if static else Status.WRONG
            findings.append(Finding(status, f"{ranks}/kv_event_sources names no event socket", engine.name))
        else:
            where = ", ".join(str(source.events) for source in engine.ranks)
            findings.append(Finding(Status.FINE, where[:200], engine.name))
    return findings


def events_reachable(case: Case) -> list[Finding]:
    """A subscriber here is connected."""
    findings = []
    for engine, rank, heard in _heard(case):
        if heard.connected and not heard.error:
            findings.append(Finding(Status.FINE, f"subscribed to {heard.address}", _name(engine, rank)))
        elif heard.connected:
            findings.append(Finding(Status.WRONG, heard.error, _name(engine, rank), "see the engine's log"))
        else:
            why = heard.error or "no publisher answers there"
            endpoint = ((engine.sources or {}).get(str(rank)) or {}).get("endpoint")
            if isinstance(endpoint, str) and not _binds(endpoint):
                why += f" (the engine's endpoint {endpoint} is none that vLLM binds)"
            findings.append(Finding(Status.WRONG, f"{heard.address}: {why}", _name(engine, rank)))
    return findings


def events_encoding(case: Case) -> list[Finding]:
    """Everything that the engine announced can be read."""
    findings = []
    for engine, rank, heard in _heard(case):
        unread = {reason: count for reason, count in heard.skipped.items() if reason != "unknown_field"}
        if unread:
            told = ", ".join(f"{reason} x{count}" for reason, count in sorted(unread.items()))
            findings.append(Finding(Status.WRONG, f"not readable: {told}", _name(engine, rank)))
        elif heard.batches:
            forms = (
                f"{'/'.join(sorted(heard.encodings))}, hashes as {'/'.join(sorted(heard.hash_forms)) or 'none seen'}"
            )
            findings.append(Finding(Status.FINE, f"{heard.batches} batches: {forms}", _name(engine, rank)))
        else:
            findings.append(Finding(Status.SKIPPED, "no batch came", _name(engine, rank)))
    return findings


def replay(case: Case) -> list[Finding]:
    """Batches that were missed can be asked for again."""
    findings = []
    for engine in case.engines:
        row = case.row(engine.name)
        if not engine.reachable or row.get("source") in ("static", "kubernetes", "dns"):
            continue
        for source in engine.ranks:
            name, heard = _name(engine, source.rank), engine.heard.get(source.rank)
            if source.events is None:
                continue
            if source.replay is None:
                findings.append(Finding(Status.WARNING, "the engine has no replay socket", name))
            elif heard is None or heard.replay is None:
                state = "not asked from here: its agent does" if not case.alone else "not asked"
                findings.append(
                    Finding(Status.FINE if not case.alone else Status.SKIPPED, f"{source.replay}, {state}", name)
                )
            elif not heard.replay.answered:
                remedy = BINDS.replace('"endpoint": "tcp://*:5557"', '"replay_endpoint": "tcp://*:5657"')
                remedy = remedy.replace("--kv-events tcp", "--kv-replay tcp")
                findings.append(Finding(Status.WRONG, heard.replay.error, name, remedy))
            elif heard.probe_seen and not heard.replay.batches:
                detail = f"{source.replay} kept nothing of what was just announced"
                findings.append(Finding(Status.WRONG, detail, name, 'set "buffer_steps": 10000 in --kv-events-config'))
            else:
                findings.append(Finding(Status.FINE, f"{heard.replay.batches} batches kept at {source.replay}", name))
    return findings


def _binds(endpoint: str) -> bool:
    """Tell whether vLLM binds to an endpoint (0.32.0, distributed/kv_events.py); it connects to any other."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _heard(case: Case) -> Iterator[tuple[EngineFacts, int, Heard]]:
    for engine in case.engines:
        for rank, heard in engine.heard.items():
            yield engine, rank, heard


def _name(engine: EngineFacts, rank: int) -> str:
    return f"{engine.name}/{rank}".lstrip("/") if len(engine.ranks) > 1 else engine.name


def _scheme(unit: dict[str, Any]) -> dict[str, Any]:
    scheme = unit.get("scheme")
    return scheme if isinstance(scheme, dict) else {}


def _unlisted(case: Case, engine: EngineFacts) -> Finding:
    if case.options.events:
        return Finding(Status.FINE, f"{case.options.events}, as told by --kv-events", engine.name)
    detail = "the engine has no /kv_event_sources (a release before it, or another engine)"
    return Finding(Status.WARNING, detail, engine.name, "name its sockets: --kv-events tcp://HOST:PORT --kv-replay ...")


def _heard_proof(case: Case, engine: EngineFacts, rank: int, heard: Heard) -> Finding:
    name = _name(engine, rank)
    if heard.proof == "proven":
        return Finding(Status.FINE, f"proven from a root block: {heard.scheme}", name)
    if heard.proof == "refuted":
        return Finding(
            Status.WRONG, str(heard.reason).replace("pass it as --hash-seed", "give it as --hash-seed"), name
        )
    if not heard.connected or heard.error:
        return Finding(Status.SKIPPED, "no events were heard", name)
    if engine.cache.prefix_caching is False:
        return Finding(Status.SKIPPED, "no prefix cache, no blocks", name)
    if not heard.probe_seen:
        detail = "the probe's first block was not announced within 5 s"
        remedy = "ask again; if it stays so, events are lost: see whether another publisher holds the port"
        return Finding(Status.WRONG, detail, name, remedy)
    return Finding(Status.WRONG, str(heard.reason), name)


def _unit_proof(unit: dict[str, Any], engine: EngineFacts, static: bool) -> Finding:
    name, scheme = str(unit.get("unit", "")), _scheme(unit)
    trust, reason = unit.get("trust"), unit.get("reason")
    words = f"{scheme.get('algorithm', 'scheme unknown')}, {scheme.get('block_size', '?')} tokens a block"
    if trust == "exact":
        return Finding(Status.FINE, f"exact: {words}", name)
    if trust == "none":
        return Finding(Status.SKIPPED, f"no prefix cache: {reason or 'the engine says so'}", name)
    if static:
        detail = "known by address alone, without an agent: the router remembers what it sent and hears of no eviction"
        return Finding(Status.WARNING, detail, name, START_AGENT.format(url=engine.url))
    return Finding(Status.WRONG, f"trust is {trust}: {reason or 'no reason was told'}", name)
