"""`warmroute doctor --router`: a real router, its replicas, agents and Valkey; and routers that are set up wrong."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.workloads.text import tokenizer_folder
from router.cli import main
from router.tools.local_fleet import EngineOptions, LocalFleet

FAST = EngineOptions(
    num_blocks=512, prefill_tokens_per_s=200_000, decode_step_s=0.001, extra=("--hash-algo", "sha256_cbor")
)
Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """One replica with its agent."""
    with LocalFleet(FAST, replicas=1) as running:
        yield running


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """One replica without an agent, behind a router with a chat template that is not the engine's; it keeps traces."""
    template = tmp_path_factory.mktemp("router") / "template.jinja"
    template.write_text((tokenizer_folder() / "chat_template.jinja").read_text().replace("<|im_end|>", "<|im_end|> "))
    model = {"name": "tiny", "tokenizer": str(tokenizer_folder()), "chat_template": str(template)}
    unserved = {"name": "huge"}
    with LocalFleet(
        FAST, replicas=1, agents=False, router={"models": [model, unserved], "admin": {"traces": True}}
    ) as running:
        yield running


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """`doctor(fleet, *options)`: exit code, and each check's JSON by its id."""

    def run(fleet: LocalFleet, *options: str) -> tuple[int, dict[str, Any]]:
        code = main(["doctor", "--router", fleet.router.http, "--json", *options])
        return code, {check["id"]: check for check in json.loads(capsys.readouterr().out)["checks"]}

    return run


def wrong(checks: dict[str, Any]) -> list[str]:
    """The ids of what is wrong."""
    return [name for name, check in checks.items() if check["status"] == "wrong"]


def settled(look: Callable[[], tuple[int, dict[str, Any]]], *expected: str) -> dict[str, Any]:
    """Look until just these are wrong; return the checks. On a busy machine engines and agents may be late."""
    deadline = time.monotonic() + 60
    while True:
        code, checks = look()
        if wrong(checks) == list(expected) or time.monotonic() > deadline:
            assert (code, wrong(checks)) == (1 if expected else 0, list(expected))
            return checks


def ask(fleet: LocalFleet, messages: list[dict[str, str]]) -> None:
    """One chat through the router."""
    connection = http.client.HTTPConnection(fleet.router.http.removeprefix("http://"), timeout=20)
    body = {"model": "tiny", "messages": messages, "max_tokens": 1}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_good_fleet(fleet: LocalFleet, doctor: Doctor) -> None:
    """Nothing is wrong, and every check that needs an agent or Redis is among those done."""
    checks = settled(lambda: doctor(fleet))
    assert {"scheme.proof", "text.template", "redis.keys", "redis.writes", "clock"} <= checks.keys()
    assert [checks[name]["status"] for name in ("scheme.proof", "redis.keys", "redis.version")] == ["ok"] * 3
    assert "exact: sha256_cbor" in checks["scheme.proof"]["findings"][0]["detail"]


def test_redis_away(fleet: LocalFleet, doctor: Doctor) -> None:
    """Another Redis address than one that answers; nothing is listened to there."""
    checks = settled(lambda: doctor(fleet, "--no-probe", "--redis", "redis://:secret@127.0.0.1:1/0"), "redis.reachable")
    assert "127.0.0.1:1" in checks["redis.reachable"]["findings"][0]["detail"]
    assert "secret" not in json.dumps(checks)


def test_an_empty_redis(fleet: LocalFleet, redis_url: str, doctor: Doctor) -> None:
    """A Redis in which no agent registered."""
    settled(lambda: doctor(fleet, "--no-probe", "--redis", redis_url), "redis.keys")


def test_leases_that_are_not_signed(fleet: LocalFleet, doctor: Doctor, tmp_path: Path) -> None:
    """With the router's secret, unsigned leases are told."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of sixteen")
    checks = settled(lambda: doctor(fleet, "--no-probe", "--registration-secret-file", str(secret)), "redis.keys")
    assert "not signed" in checks["redis.keys"]["findings"][0]["detail"]


def test_a_wrong_template_and_a_model_that_nobody_serves(other: LocalFleet, doctor: Doctor) -> None:
    """The router itself is asked what it makes of a chat: its first wrong token is shown; no agent is a warning."""
    code, checks = doctor(other)
    assert (code, wrong(checks)) == (1, ["engine.models", "text.template"])
    assert "'huge'" in checks["engine.models"]["findings"][-1]["detail"]
    finding = checks["text.template"]["findings"][0]
    assert finding["subject"] == "r0"
    here, there = finding["lines"]
    assert here != there
    assert "models[].chat_template" in finding["remedy"]
    assert checks["scheme.proof"]["status"] == "warning"
    assert "warmroute agent --engine-url" in checks["scheme.proof"]["findings"][0]["remedy"]


def test_traffic_with_an_id_in_the_first_block(other: LocalFleet, doctor: Doctor) -> None:
    """Prompts that are equal but for an id at their beginning: block 0 is named, and no text is shown."""
    shared = " ".join(f"Shelf {number} holds the books of room {number * 7 % 31}." for number in range(30))
    for _ in range(12):
        ask(other, [{"role": "system", "content": f"{uuid.uuid4()} {shared}"}, {"role": "user", "content": "Hello"}])
    code, checks = doctor(other, "--traffic", "--limit", "12")
    assert (code, wrong(checks)) == (1, ["traffic.divergence"])
    finding = checks["traffic.divergence"]["findings"][0]
    assert "11 of 12 requests part from an earlier one in block 0 (tokens 0 to 15)" in finding["detail"]
    assert "Shelf" not in json.dumps(checks)


def test_traffic_that_was_not_traced(fleet: LocalFleet, capsys: pytest.CaptureFixture[str]) -> None:
    """A router that keeps no traces: the key to set is told, exit code 2."""
    ask(fleet, [{"role": "user", "content": "Hello"}])
    assert main(["doctor", "--router", fleet.router.http, "--traffic"]) == 2
    assert "admin: {traces: true}" in capsys.readouterr().err
