"""What is judged of the router, the clocks and Redis. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator

from router.tools.doctor_case import Case
from router.tools.doctor_redis import RedisFacts, UnitKeys
from router.tools.doctor_report import Finding, Status

MAX_CLOCK_DIFFERENCE_S = 2.0
LEAST_MAJOR = 7
SNAPSHOT_DUE_S = 120.0
FULL_SHARE = 0.9


def router_reachable(case: Case) -> list[Finding]:
    """The router answers, and lets us read what it knows."""
    router = case.router
    if router is None:
        return []
    if not router.health.ok:
        return [Finding(Status.WRONG, f"/healthz: {router.health.why()}")]
    if router.admin_error:
        token = "401" in router.admin_error
        remedy = "give its admin token: --admin-token-file FILE" if token else "name the admin address: admin.listen"
        return [Finding(Status.WRONG, f"/admin {router.admin_error}", remedy=remedy)]
    return [Finding(Status.FINE, f"{len(router.replicas)} replicas")]


def router_ready(case: Case) -> list[Finding]:
    """The router may take traffic."""
    router = case.router
    if router is None or not router.health.ok:
        return []
    if router.ready.ok:
        return [Finding(Status.FINE, "ready")]
    value = router.ready.json
    reasons = value.get("reasons") if isinstance(value, dict) else None
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else router.ready.why()
    return [Finding(Status.WRONG, f"not ready: {why}")]


def replica_states(case: Case) -> list[Finding]:
    """No replica is out of rotation by a fault."""
    findings = []
    for row in case.router.replicas if case.router is not None else []:
        name, state = str(row.get("replica")), str(row.get("state"))
        if state == "ready":
            findings.append(Finding(Status.FINE, "ready", name))
        elif state == "draining":
            findings.append(Finding(Status.WARNING, "draining", name, "wait until it is gone or back"))
        else:
            why = row.get("down_reason") or f"{row.get('failures_in_a_row')} failures in a row"
            findings.append(Finding(Status.WRONG, f"{state}: {why}", name))
    return findings


def clocks(case: Case) -> list[Finding]:
    """Everybody's clock says about the same."""
    findings = []
    for name, ahead_s in _clocks(case):
        if abs(ahead_s) <= MAX_CLOCK_DIFFERENCE_S:
            findings.append(Finding(Status.FINE, f"within {MAX_CLOCK_DIFFERENCE_S:g} s of this machine's", name))
        else:
            word = "ahead of" if ahead_s > 0 else "behind"
            detail = f"about {abs(ahead_s):.0f} s {word} this machine's"
            findings.append(Finding(Status.WARNING, detail, name))
    return findings


def redis_reachable(case: Case) -> list[Finding]:
    """Redis answers."""
    if case.redis is None:
        return [Finding(Status.SKIPPED, case.redis_unknown)] if case.redis_unknown else []
    if case.redis.error:
        return [Finding(Status.WRONG, f"{case.redis.address}: {case.redis.error}")]
    return [
        Finding(Status.FINE, f"{case.redis.server} at {case.redis.address}, {case.redis.round_trip_s * 1e3:.1f} ms")
    ]


def redis_version(case: Case) -> list[Finding]:
    """Redis is new enough."""
    facts = _redis(case)
    if facts is None:
        return []
    if "INFO" in facts.unreadable:
        return [Finding(Status.SKIPPED, f"INFO is refused: {facts.unreadable['INFO']}"[:200])]
    if facts.major is None:
        return [Finding(Status.SKIPPED, "it does not tell its version")]
    return [Finding(Status.FINE if facts.major >= LEAST_MAJOR else Status.WRONG, facts.server)]


def redis_keys(case: Case) -> list[Finding]:
    """Every unit has its lease, its fence and its snapshot, and the router believes it."""
    facts = _redis(case)
    if facts is None:
        return []
    if refused := facts.unreadable.get("the units' keys"):
        remedy = "allow reading: ACL SETUSER NAME ~{wr* +@read"
        return [Finding(Status.WRONG, f"the units' keys can't be read: {refused}"[:200], remedy=remedy)]
    if not facts.units:
        return [Finding(Status.WRONG, "no agent has registered here")]
    known = {str(row.get("replica")) for row in case.router.replicas} if case.router is not None else None
    return [_unit(unit, known) for unit in facts.units]


def redis_writes(case: Case) -> list[Finding]:
    """Redis takes what agents write and forgets nothing of it; persistence matters only where it stops writes."""
    facts = _redis(case)
    if facts is None or not facts.info:
        return []
    info = facts.info
    findings = []
    if info.get("role") == "slave":
        remedy = "give the primary's address, to agents and routers"
        findings.append(Finding(Status.WRONG, "it is a read-only replica: agents can't write to it", remedy=remedy))
    for key in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(key, "ok") != "ok":
            detail = f"{key} is {info[key]}: Redis refuses writes while it can't save"
            remedy = "give it disk space, or save nothing (agents write all anew): CONFIG SET save '' appendonly no"
            findings.append(Finding(Status.WRONG, detail, remedy=remedy))
    most, policy = int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", "noeviction"))
    if most and policy != "noeviction":
        detail = f"maxmemory-policy is {policy}: under memory pressure it drops leases and streams"
        findings.append(Finding(Status.WARNING, detail, remedy="CONFIG SET maxmemory-policy noeviction"))
    if most and int(info.get("used_memory", 0)) > FULL_SHARE * most:
        detail = f"{int(info['used_memory']) / most:.0%} of maxmemory is in use"
        findings.append(Finding(Status.WRONG, detail, remedy="CONFIG SET maxmemory to twice as much"))
    return findings or [Finding(Status.FINE, "takes writes, drops nothing; it needs no persistence")]


def _redis(case: Case) -> RedisFacts | None:
    return case.redis if case.redis is not None and not case.redis.error else None


def _clocks(case: Case) -> Iterator[tuple[str, float]]:
    if case.router is not None and case.router.health.clock_ahead_s is not None:
        yield "router", case.router.health.clock_ahead_s
    for engine in case.engines:
        if engine.health.clock_ahead_s is not None:
            yield engine.name or "engine", engine.health.clock_ahead_s
    if case.redis is not None and case.redis.clock_ahead_s is not None:
        yield "Redis", case.redis.clock_ahead_s


def _unit(unit: UnitKeys, known: set[str] | None) -> Finding:
    name, registration = unit.unit, unit.registration
    if unit.problem:
        return Finding(Status.WRONG, f"its lease is not believed: {unit.problem}", name, "give both sides one secret")
    if registration is None:
        detail = f"its lease ended; last renewed {unit.age_s:.0f} s ago"
        return Finding(
            Status.WRONG, detail, name, "look at its agent; a replica that is gone for good leaves by itself"
        )
    if known is not None and registration.replica_id not in known:
        remedy = "compare registration.secret and registration.allow with the agent's; the router's log says which"
        return Finding(Status.WRONG, "registered, but the router does not have it", name, remedy)
    if not unit.has_epoch:
        return Finding(Status.WARNING, "its fence is missing", name, "restart its agent")
    if not unit.has_snapshot and time.time() - registration.started > SNAPSHOT_DUE_S:
        return Finding(Status.WARNING, "it has no snapshot: a router that starts knows none of its blocks", name)
    return Finding(Status.FINE, f"renewed {unit.age_s:.0f} s ago", name)
