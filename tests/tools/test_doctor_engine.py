"""`warmroute doctor --engine`: each fault is really there, in a simulated engine started with it."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.workloads.text import tokenizer_folder
from router.cli import main
from router.tools.processes import Child, stop_all, wait_for

ENGINES: dict[str, list[str]] = {
    "good": ["--hash-algo", "sha256_cbor", "--event-encoding", "array", "--event-hashes", "bytes"],
    "bare": ["--no-prefix-caching", "--no-enable-prompt-tokens-details"],
    "seeded": ["--hash-algo", "sha256_cbor", "--seed", "7", "--replay-port", "off", "--data-parallel-size", "2"],
    "silent": ["--hash-algo", "xxhash", "--events-port", "off", "--replay-port", "off", "--api-key", "engine-key"],
    "other text": ["--hash-algo", "sha256_cbor", "--fault", "drop_events=1", "--fault", "unhealthy=503"],
}
Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer's folder with another chat template: a line more after each message."""
    folder = tmp_path_factory.mktemp("other") / "tokenizer"
    shutil.copytree(tokenizer_folder(), folder)
    template = folder / "chat_template.jinja"
    template.write_text("{{ '[INST] ' }}" + template.read_text())
    return folder


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, other_folder: Path) -> Iterator[dict[str, str]]:
    """Addresses of engines, each with faults of its own."""
    folder = tmp_path_factory.mktemp("engines")
    children = {}
    for name, options in ENGINES.items():
        tokenizer = other_folder if name == "other text" else tokenizer_folder()
        command = ["-m", "router.cli", "simengine", "--model", "tiny", "--tokenizer", str(tokenizer), *options]
        children[name] = Child(name.replace(" ", "-"), [sys.executable, *command], folder)
    try:
        everybody = list(children.values())
        yield {
            name: wait_for(f"{name} is ready", child.ready_line, everybody, 60.0)["http"]
            for name, child in children.items()
        }
    finally:
        stop_all(list(children.values()))


@pytest.fixture
def doctor(engines: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Doctor:
    """`doctor(engine, *options)`: exit code, and each check's JSON by its id."""

    def run(engine: str, *options: str) -> tuple[int, dict[str, Any]]:
        tokenizer = ["--tokenizer", str(tokenizer_folder())]
        code = main(["doctor", "--engine", engines[engine], *tokenizer, "--json", *options])
        return code, {check["id"]: check for check in json.loads(capsys.readouterr().out)["checks"]}

    return run


def wrong(checks: dict[str, Any]) -> list[str]:
    """The ids of what is wrong."""
    return [name for name, check in checks.items() if check["status"] == "wrong"]


def said(check: dict[str, Any]) -> str:
    """What a check found, and its remedies."""
    return " ".join(f"{item['detail']} {item['remedy']} {' '.join(item['lines'])}" for item in check["findings"])


def test_a_good_engine(doctor: Doctor) -> None:
    """Nothing is wrong: exit code 0, the scheme is proven from a root block, and forms of events are told."""
    code, checks = doctor("good", "--block-size", "16")
    assert (code, wrong(checks)) == (0, [])
    assert "proven from a root block: sha256_cbor, 16 tokens a block" in said(checks["scheme.proof"])
    assert "array, hashes as bytes" in said(checks["events.encoding"])
    assert checks["text.template"]["findings"][0]["status"] == "ok"
    assert "16 cached tokens" in said(checks["usage.token_details"])
    assert checks["events.replay"]["status"] == "ok"


def test_another_block_size_than_expected(doctor: Doctor) -> None:
    """--block-size 32 against an engine with 16."""
    code, checks = doctor("good", "--block-size", "32", "--no-probe")
    assert (code, wrong(checks)) == (1, ["scheme.block_size"])
    assert "says 16 tokens a block, --block-size: 32" in said(checks["scheme.block_size"])


def test_an_event_socket_that_nobody_binds(doctor: Doctor) -> None:
    """A closed port is named, with how vLLM binds."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        code, checks = doctor("good", "--kv-events", address, "--kv-replay", address)
    assert (code, wrong(checks)) == (1, ["events.reachable", "events.replay"])
    assert address in said(checks["events.reachable"])
    assert checks["cache.on"]["status"] == "ok"  # the probe was sent all the same, and found again
    assert "tcp://*:5557" in said(checks["events.reachable"])
    assert "tcp://*:5657" in said(checks["events.replay"])


def test_no_prefix_cache_and_no_token_details(doctor: Doctor) -> None:
    """Both are wrong, and both flags are told."""
    code, checks = doctor("bare")
    assert (code, wrong(checks)) == (1, ["cache.on", "usage.token_details"])
    assert "--enable-prefix-caching" in said(checks["cache.on"])
    assert "--enable-prompt-tokens-details" in said(checks["usage.token_details"])


def test_a_seed_that_was_not_told(doctor: Doctor) -> None:
    """PYTHONHASHSEED makes other hashes: refuted at each rank, and --hash-seed is what to type."""
    code, checks = doctor("seeded")
    assert (code, wrong(checks)) == (1, ["scheme.proof"])
    assert [finding["subject"] for finding in checks["scheme.proof"]["findings"]] == ["0", "1"]
    assert "--hash-seed" in said(checks["scheme.proof"])
    assert checks["events.replay"]["status"] == "warning"  # it has no replay socket


def test_a_seed_that_was_told(doctor: Doctor) -> None:
    """With its seed the same engine is proven, and the seed is not printed."""
    code, checks = doctor("seeded", "--hash-seed", "7")
    assert (code, wrong(checks)) == (0, [])
    assert "the seed given" in said(checks["scheme.proof"])


def test_no_events_and_a_key_that_is_missing(doctor: Doctor) -> None:
    """An engine that publishes nothing, and answers /v1 with 401."""
    code, checks = doctor("silent")
    assert (code, wrong(checks)) == (1, ["engine.models", "events.published"])
    assert "--api-key-file" in said(checks["engine.models"])
    assert "--kv-events-config" in said(checks["events.published"])


def test_xxhash_between_tenants(doctor: Doctor, tmp_path: Path) -> None:
    """xxhash is a warning, no fault; with the key in a file the engine's models are read."""
    key = tmp_path / "key"
    key.write_text("engine-key\n")
    code, checks = doctor("silent", "--api-key-file", str(key))
    assert (code, wrong(checks)) == (1, ["events.published"])
    assert checks["scheme.tenants"]["status"] == "warning"
    assert "collisions" in said(checks["scheme.tenants"])


def test_another_chat_template(doctor: Doctor) -> None:
    """The first token that differs is shown with both sides' text; the plain prompt is equal."""
    _, checks = doctor("other text", "--no-probe")
    assert checks["text.tokenizer"]["status"] == "ok"
    [*_, finding] = checks["text.template"]["findings"]
    assert "token 0 differs" in finding["detail"]
    here, there = finding["lines"]
    assert here.startswith("here   [0:] [1,")  # <|im_start|>
    assert "<|im_start|>" in here
    assert "[INST]" in there
    assert "[INST]" not in here


def test_events_that_are_lost_and_an_unhealthy_engine(doctor: Doctor) -> None:
    """Batches that never come leave the scheme unproven; /health is told as it is."""
    _, checks = doctor("other text")
    assert "not announced" in said(checks["scheme.proof"])
    assert checks["events.reachable"]["status"] == "ok"
    assert "503" in said(checks["engine.reachable"])


def test_an_engine_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """One thing is wrong, and the page says what to do."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert main(["doctor", "--engine", f"http://127.0.0.1:{closed.getsockname()[1]}"]) == 1
    page = capsys.readouterr().out
    assert "WRONG    engine.reachable" in page
    assert "do: start it, or correct its address" in page
    assert page.endswith("1 WRONG\n")
