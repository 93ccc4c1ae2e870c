"""Every check in one table. A new one is a function and a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.admin.remedies import PREDICTIONS, PROOF, READY, REMEDIES, REPLICAS, TOKEN_DETAILS
from router.tools import doctor_engine_checks as engine
from router.tools import doctor_fleet_checks as fleet
from router.tools import doctor_scheme_checks as scheme
from router.tools.doctor_case import Case
from router.tools.doctor_report import Finding, Result


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table.

    Attributes:
        id: Stable.
        title: What is checked.
        meaning: Why it matters.
        remedy: What to do or type where a finding names nothing better.
        run: Judges a case; no finding at all where the check does not apply.
    """

    id: str
    title: str
    meaning: str
    remedy: str
    run: Callable[[Case], list[Finding]]


CHECKS: tuple[Check, ...] = (
    Check(
        "router.reachable",
        "the router answers",
        "Nothing can be said of a router that does not answer.",
        "start it, or give the address of its admin: the line it prints when ready has it",
        fleet.router_reachable,
    ),
    Check(
        READY,
        "the router takes traffic",
        "Load balancers in front of it send nothing while it is not ready.",
        REMEDIES[READY],
        fleet.router_ready,
    ),
    Check(
        REPLICAS,
        "replicas in rotation",
        "A replica that is out of rotation serves nothing, and what it has cached is lost to the fleet.",
        REMEDIES[REPLICAS],
        fleet.replica_states,
    ),
    Check(
        "engine.reachable",
        "the engine answers",
        "An engine that does not answer serves nothing.",
        "start it, or correct its address",
        engine.reachable,
    ),
    Check(
        "engine.models",
        "what is served",
        "Requests are matched with replicas by the model's name.",
        "start the engine with --served-model-name",
        engine.models,
    ),
    Check(
        "cache.on",
        "the prefix cache is on",
        "Without a prefix cache every prompt is computed whole, wherever it goes.",
        "start the engine with --enable-prefix-caching",
        engine.cache_on,
    ),
    Check(
        "scheme.block_size",
        "block size",
        "Blocks of other sizes have other hashes: nothing would ever match.",
        "take what the engine says (its --block-size): restart its agent, or correct models[].block_size",
        scheme.block_size,
    ),
    Check(
        PROOF,
        "hash scheme and seed",
        "Only when the hashes computed here are the engine's own does the router know what it holds.",
        REMEDIES[PROOF],
        scheme.proof,
    ),
    Check(
        PREDICTIONS,
        "predictions come true",
        "Where what is predicted is not what the engine announces, its cache is not used for placement.",
        REMEDIES[PREDICTIONS],
        scheme.predictions,
    ),
    Check(
        "scheme.tenants",
        "hashes between tenants",
        "With a hash that is not collision resistant, one tenant can make the engine read another's blocks.",
        "start the engine with --prefix-caching-hash-algo sha256_cbor",
        scheme.tenants,
    ),
    Check(
        "events.published",
        "KV events are published",
        "Events are how it is known what an engine holds.",
        'start the engine with --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
        '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\'',
        scheme.events_published,
    ),
    Check(
        "events.reachable",
        "the event socket",
        "Where nobody can subscribe, nothing is heard.",
        scheme.BINDS,
        scheme.events_reachable,
    ),
    Check(
        "events.encoding",
        "form of events",
        "An event that can't be read is left out, and the router believes in blocks that are gone.",
        "say which engine and version this is in an issue; warmroute reads vLLM's maps and arrays",
        scheme.events_encoding,
    ),
    Check(
        "events.replay",
        "replay of missed events",
        "Without it a lost batch makes what the engine holds unknown until it is reset.",
        'add "replay_endpoint": "tcp://*:5657" to --kv-events-config',
        scheme.replay,
    ),
    Check(
        "text.tokenizer",
        "tokenizer",
        "One token off in the first block and the hit rate is zero.",
        "give the router the folder that the engine loads: models[].tokenizer: DIR",
        engine.tokenizer,
    ),
    Check(
        "text.template",
        "chat template",
        "One token off in the first block and the hit rate is zero.",
        "give the router the engine's own template: models[].chat_template: FILE (its --chat-template)",
        engine.template,
    ),
    Check(
        TOKEN_DETAILS,
        "cached tokens in usage",
        "Without them it is not known whether predictions hold: warmroute_reuse_tokens_total counts as unobserved.",
        REMEDIES[TOKEN_DETAILS],
        engine.token_details,
    ),
    Check(
        "lora.paths",
        "paths of LoRA adapters",
        "An adapter's path is part of its blocks' hashes.",
        "load it with a path: --lora-modules NAME=PATH",
        engine.lora_paths,
    ),
    Check(
        "clock",
        "clocks",
        "Chat templates that print the date, certificates and the lag that metrics show follow each machine's clock.",
        "synchronise it: timedatectl set-ntp true",
        fleet.clocks,
    ),
    Check(
        "redis.reachable",
        "Redis answers",
        "Without it routers keep what they know, and learn nothing new.",
        "start it, or correct redis.url; its log says why it refuses",
        fleet.redis_reachable,
    ),
    Check(
        "redis.version",
        "Redis' version",
        "Agents and routers use commands of Redis 7 (Valkey 7).",
        "upgrade to Redis 7, Valkey 7 or newer",
        fleet.redis_version,
    ),
    Check(
        "redis.keys",
        "what agents wrote",
        "A replica without a lease is not known to routers.",
        "start its agent with --redis, and the same --namespace and --lanes as the router",
        fleet.redis_keys,
    ),
    Check(
        "redis.writes",
        "Redis takes and keeps writes",
        "Where writes are refused or keys dropped, routers lose sight of replicas.",
        "see what is named",
        fleet.redis_writes,
    ),
)


def run_all(case: Case) -> list[Result]:
    """Return the result of every check that applies, in the table's order."""
    found = ((check, check.run(case)) for check in CHECKS)
    return [Result(check.id, check.title, check.meaning, check.remedy, rows) for check, rows in found if rows]
