"""The doctor's checks against facts: recorded of the real engine, and of faults that no test can bring about."""

from __future__ import annotations

import http.server
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replica.agent.engine import rank_sources
from router.kv.engine_metrics import CacheConfig
from router.kv.registration import RegisteredModel as Model
from router.kv.registration import Registration
from router.tools.doctor_case import Case, Options, RouterFacts
from router.tools.doctor_checks import CHECKS
from router.tools.doctor_engine import EngineFacts, Wishes, examine
from router.tools.doctor_heard import Heard, note_forms
from router.tools.doctor_http import Answer, Server
from router.tools.doctor_redis import RedisFacts, UnitKeys, shown
from router.tools.doctor_report import Finding, Status
from router.tools.doctor_text import PROBES, Ids, Probe, Sides, first_difference, local_renderer

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = json.loads((GOLDEN / "engine_http.json").read_text())
CASES = {case["name"]: case for case in RECORDED["cases"]}
SOURCES = json.loads((GOLDEN / "kv_event_sources.json").read_text())


def judged(check_id: str, case: Case) -> list[Finding]:
    """What one check of the table finds."""
    return next(check for check in CHECKS if check.id == check_id).run(case)


def engine(**facts: Any) -> EngineFacts:
    """A healthy engine with the facts given."""
    return EngineFacts(facts.pop("name", ""), "http://10.0.0.1:8000", Answer(200), **facts)


def alone(*engines: EngineFacts) -> Case:
    """A case of engines without a router."""
    return Case(Options(engine="http://10.0.0.1:8000"), None, list(engines))


def behind_router(*engines: EngineFacts, rows: list[dict[str, Any]] | None = None, **config: Any) -> Case:
    """A case with a router that answers."""
    facts = RouterFacts(
        Answer(200), Answer(200), rows or [{"replica": e.name, "state": "ready"} for e in engines], config
    )
    return Case(Options(router=Server("http://router")), facts, list(engines))


@pytest.fixture(scope="module")
def recorded_engine() -> Iterator[str]:
    """A server that answers GET with what the real engine answered."""
    answers = {case["path"]: case for case in RECORDED["cases"] if case["method"] == "GET" and case["status"] == 200}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            case = answers.get(self.path)
            body = json.dumps(case.get("json")).encode() if case and case.get("json") is not None else b""
            self.send_response(200 if case else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_the_real_engine_answered_is_read(recorded_engine: str) -> None:
    """Version, models and event sockets of the recorded engine; no figure is made up where it gave none."""
    facts = examine(Server(recorded_engine), "", Wishes(generate=False), random.Random(1))
    case = alone(facts)
    assert facts.version == "0.32.0"
    assert [finding.detail for finding in judged("engine.models", case)] == ["tiny"]
    [published] = judged("events.published", case)
    assert (published.status, published.detail) == (Status.FINE, "tcp://127.0.0.1:18101")
    assert judged("cache.on", case)[0].status is Status.WRONG  # /metrics is not among what was recorded
    assert judged("clock", case)[0].status is Status.FINE


def test_recorded_event_sources() -> None:
    """The recorded endpoint is one that vLLM does not bind: when nobody answers there, that is told."""
    ranks = rank_sources(SOURCES, ["0"], "10.0.0.1", None, None)
    facts = engine(sources=SOURCES, ranks=ranks, heard={0: Heard("tcp://127.0.0.1:5557")})
    [finding] = judged("events.reachable", alone(facts))
    assert finding.status is Status.WRONG
    assert "tcp://127.0.0.1:5557 is none that vLLM binds" in finding.detail
    assert judged("events.published", alone(facts))[0].status is Status.FINE
    wildcard = {"0": {**SOURCES["0"], "endpoint": "tcp://*:5557"}}
    [finding] = judged("events.reachable", alone(replace(facts, sources=wildcard)))
    assert "is none that vLLM binds" not in finding.detail


@pytest.mark.parametrize("name", ["completion", "chat"])
def test_recorded_usage(name: str) -> None:
    """The recorded usage has token details; the same without them is wrong."""
    usage = CASES[name]["json"]["usage"]
    assert judged("usage.token_details", alone(engine(usage=usage)))[0].status is Status.FINE
    silent = {**usage, "prompt_tokens_details": None}
    assert judged("usage.token_details", alone(engine(usage=silent)))[0].status is Status.WRONG


def test_recorded_tokens() -> None:
    """The doctor's own rendering gives the ids that the real engine's /tokenize gave."""
    render = local_renderer(GOLDEN / "tokenizer", None)
    for name, path in (("tokenize", "/v1/completions"), ("tokenize_chat", "/v1/chat/completions")):
        fields = {key: value for key, value in CASES[name]["body"].items() if key != "model"}
        assert render("tiny", Probe(name, path, fields)).ids == CASES[name]["json"]["tokens"]


def test_recorded_events() -> None:
    """Forms of the real engine's frames: integers by default, bytes when it was told so."""
    for name, form in (("int", "unsigned int"), ("bytes", "bytes")):
        [file] = [path for path in (GOLDEN / "recordings").glob("*.json") if f"{name}" in path.name][:1]
        heard = Heard("tcp://x")
        for frames in json.loads(file.read_text()):
            note_forms(bytes.fromhex(frames[2]), heard)
        assert (heard.encodings, heard.hash_forms) == ({"map"}, {form})


def test_a_cache_that_finds_nothing() -> None:
    """An engine that says its cache is on, and delivered nothing of a repeated prompt."""
    usage = {"prompt_tokens_details": {"cached_tokens": 0}}
    facts = engine(caches={"0": CacheConfig(16, 100, "sha256", True)}, usage=usage, probe_hit_tokens=16)
    [finding] = judged("cache.on", alone(facts))
    assert (finding.status, "0 cached tokens instead of 16" in finding.detail) == (Status.WARNING, True)


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(0.9, Status.FINE), (-1.9, Status.FINE), (2.5, Status.WARNING), (-3600.0, Status.WARNING)]
)
def test_clocks(ahead_s: float, status: Status) -> None:
    """A Date header is right to a second: two seconds and more are told."""
    facts = replace(engine(name="r0"), health=Answer(200, clock_ahead_s=ahead_s))
    [finding] = judged("clock", alone(facts))
    assert (finding.status, finding.subject) == (status, "r0")


def test_the_routers_block_size() -> None:
    """A router that takes other blocks than the engine."""
    facts = engine(name="r0", caches={"0": CacheConfig(32, 100, "sha256", True)})
    unit = {"unit": "r0/0", "trust": "exact", "scheme": {"algorithm": "sha256", "block_size": 16}}
    [finding] = judged("scheme.block_size", behind_router(facts, rows=[{"replica": "r0", "units": [unit]}]))
    assert finding.status is Status.WRONG
    assert finding.detail == "the engine says 32 tokens a block, the router: 16"


@pytest.mark.parametrize(
    ("trust", "source", "status"),
    [
        ("exact", "redis", Status.FINE),
        ("none", "redis", Status.SKIPPED),
        ("approximate", "static", Status.WARNING),
        ("approximate", "redis", Status.WRONG),
        ("mapped", "redis", Status.WRONG),
    ],
)
def test_trust(trust: str, source: str, status: Status) -> None:
    """Only with an agent is less than exact wrong, and its reason is told."""
    unit = {"unit": "r0/0", "trust": trust, "reason": "hash algorithm x is not known", "scheme": None}
    row = {"replica": "r0", "source": source, "units": [unit]}
    [finding] = judged("scheme.proof", behind_router(engine(name="r0"), rows=[row]))
    assert finding.status is status
    assert ("hash algorithm x" in finding.detail) is (source == "redis" and trust != "exact")


def test_predictions_that_fail() -> None:
    """A reason that the router found while running is told for its model and kind of requests."""
    record = {"model": "tiny", "kind": "chat", "reason": "template", "explanation": "E", "good": 3, "mismatched": 5}
    row = {"replica": "r0", "units": [{"unit": "r0/0", "predictions": [record]}]}
    [finding] = judged("scheme.predictions", behind_router(engine(name="r0"), rows=[row]))
    assert (finding.status, finding.subject) == (Status.WRONG, "r0/0 tiny (chat)")
    assert finding.detail == "predictions fail (3 held, 5 failed): E"


def test_xxhash_and_tenants() -> None:
    """Behind a router xxhash is a warning from two tenants on."""
    facts = engine(name="r0", caches={"0": CacheConfig(16, 100, "xxhash_cbor", True)})
    one, two = (behind_router(facts, tenants=[{"name": str(n)} for n in range(count)]) for count in (1, 2))
    assert judged("scheme.tenants", one)[0].status is Status.FINE
    assert judged("scheme.tenants", two)[0].status is Status.WARNING


def test_adapters() -> None:
    """No path, a path that the router has otherwise, another path elsewhere, not everywhere: each is told."""
    base = Model("tiny", "/m")
    homes = [
        engine(name="r0", models=(base, Model("a", "/lora/a", "tiny"), Model("b", "b", "tiny"))),
        engine(name="r1", models=(base, Model("a", "/other/a", "tiny"), Model("b", "/lora/b", "tiny"))),
        engine(name="r2", models=(base, Model("a", "/lora/a", "tiny"))),
    ]
    rows = [{"replica": "r2", "models": [{"name": "tiny", "root": "/m"}, {"name": "a", "root": "/old/a"}]}]
    told = [(finding.status, finding.detail) for finding in judged("lora.paths", behind_router(*homes, rows=rows))]
    assert told == [
        (Status.WRONG, "adapter b: /v1/models does not tell its path, which its blocks' hashes contain"),
        (Status.WRONG, "adapter a is loaded from '/lora/a', the router has '/old/a'"),
        (
            Status.WARNING,
            "adapter a has another path on each replica, so its blocks have other hashes there "
            "(r0: /lora/a, r1: /other/a, r2: /lora/a)",
        ),
        (Status.WARNING, "adapter b is on 2 of 3 replicas, not on r2"),
        (
            Status.WARNING,
            "adapter b has another path on each replica, so its blocks have other hashes there (r0: b, r1: /lora/b)",
        ),
    ]


def test_a_router_that_wants_its_token() -> None:
    """401 from /admin: the option to give."""
    facts = RouterFacts(Answer(200), Answer(200), admin_error="answered 401: the admin token is missing or wrong")
    [finding] = judged("router.reachable", Case(Options(), facts))
    assert (finding.status, "--admin-token-file" in finding.remedy) == (Status.WRONG, True)


def test_a_router_that_is_not_ready() -> None:
    """Its own reasons are told, and replicas out of rotation by name."""
    ready = Answer(503, json.dumps({"ready": False, "reasons": ["redis: no snapshot yet"]}).encode())
    rows = [{"replica": "r0", "state": "down", "down_reason": "no answer"}, {"replica": "r1", "state": "draining"}]
    case = Case(Options(), RouterFacts(Answer(200), ready, rows))
    assert judged("router.ready", case)[0].detail == "not ready: redis: no snapshot yet"
    states = [(finding.subject, finding.status) for finding in judged("router.replicas", case)]
    assert states == [("r0", Status.WRONG), ("r1", Status.WARNING)]


def test_an_engine_that_only_the_router_reaches() -> None:
    """The doctor may stand elsewhere: no fault."""
    facts = EngineFacts("r0", "http://10.0.0.1:8000", Answer(0, error="no answer within 5 s"))
    assert judged("engine.reachable", behind_router(facts))[0].status is Status.WARNING
    assert judged("engine.reachable", alone(facts))[0].status is Status.WRONG


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({}, Status.FINE),
        ({"rdb_last_bgsave_status": "err"}, Status.WRONG),
        ({"role": "slave"}, Status.WRONG),
        ({"maxmemory": 100, "maxmemory_policy": "allkeys-lru", "used_memory": 10}, Status.WARNING),
        ({"maxmemory": 100, "maxmemory_policy": "noeviction", "used_memory": 95}, Status.WRONG),
        ({"maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, Status.FINE),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "ok"}, Status.FINE),
    ],
)
def test_redis_writes(info: dict[str, Any], status: Status) -> None:
    """No persistence is no fault; a save that failed is, since Redis then refuses writes."""
    case = Case(Options(), redis=RedisFacts("redis://x", info={"redis_version": "7.2.0", **info}))
    assert max(finding.status for finding in judged("redis.writes", case)) is status


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({"redis_version": "6.2.14"}, Status.WRONG),
        ({"redis_version": "7.0.0"}, Status.FINE),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.8"}, Status.FINE),
        ({}, Status.SKIPPED),
    ],
)
def test_redis_version(info: dict[str, Any], status: Status) -> None:
    """From 7 on."""
    assert judged("redis.version", Case(Options(), redis=RedisFacts("redis://x", info=info)))[0].status is status


def test_redis_keys() -> None:
    """A lease that ended, one that is not believed, one the router does not have, one without a snapshot."""
    registration = Registration(unit="r0/0", replica_id="r0", url="http://10.0.0.1:8000", started=time.time() - 3600)
    good = UnitKeys("r0/0", 1.0, registration, "", True, True)
    units = (
        good,
        replace(good, registration=None, age_s=30.0),
        replace(good, registration=None, problem="the lease is not signed"),
        replace(good, has_snapshot=False),
        replace(good, has_epoch=False),
    )
    case = replace(behind_router(engine(name="r0")), redis=RedisFacts("redis://x", units=units))
    statuses = [finding.status for finding in judged("redis.keys", case)]
    assert statuses == [Status.FINE, Status.WRONG, Status.WRONG, Status.WARNING, Status.WARNING]
    stranger = replace(behind_router(engine(name="r9")), redis=RedisFacts("redis://x", units=(good,)))
    assert "the router does not have it" in judged("redis.keys", stranger)[0].detail


def test_sides_that_cannot_be_compared() -> None:
    """No tokenizer is a warning, a refusal on both sides is no fault, one on the engine's a warning."""
    probe = PROBES[1]
    for ours, theirs, status in (
        (Ids(None, "no_tokenizer"), Ids([1]), Status.WARNING),
        (Ids(None, "template_error"), Ids([1]), Status.WRONG),
        (Ids(None, "template_error"), Ids(None, "answered 400"), Status.SKIPPED),
        (Ids([1]), Ids(None, "answered 400"), Status.WARNING),
        (Ids([1]), Ids([1]), Status.FINE),
    ):
        facts = engine(texts=(Sides(probe, ours, theirs),))
        assert judged("text.template", alone(facts))[0].status is status


@pytest.mark.parametrize(
    ("ours", "theirs", "at"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None)]
)
def test_first_difference(ours: list[int], theirs: list[int], at: int | None) -> None:
    """Also where one side merely ends."""
    assert first_difference(ours, theirs) == at


def test_a_redis_password_is_never_shown() -> None:
    """Neither user nor password."""
    assert shown("rediss://user:secret@redis.example:6380/1") == "rediss://redis.example:6380/1"


def test_a_router_is_looked_at_without_zmq() -> None:
    """A router's own machine has the extra `router` alone."""
    code = "import router.tools.doctor, router.tools.doctor_checks, sys; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_redis_whose_password_the_router_hides() -> None:
    """It is not looked at, and what to give is told: no fault."""
    case = Case(Options(), redis_unknown="give --redis or WARMROUTE_DOCTOR_REDIS")
    assert [(item.status, item.detail) for item in judged("redis.reachable", case)] == [
        (Status.SKIPPED, "give --redis or WARMROUTE_DOCTOR_REDIS")
    ]
    assert judged("redis.keys", case) == []


def test_every_check_is_told_apart() -> None:
    """Ids are unique, and every row says what it means and what to do."""
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert all(check.title and check.meaning.endswith(".") and check.remedy for check in CHECKS)
