"""The router as a process: what it says when it can't start, how it drains, what it does when a replica dies."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet

COMMAND = [sys.executable, "-m", "router.cli", "router", "--config"]


def started(tmp_path: Path, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a router that is expected to end by itself."""
    path = tmp_path / "router.yaml"
    path.write_text(json.dumps(config))
    return subprocess.run([*COMMAND, str(path)], capture_output=True, text=True, timeout=60, check=False)


def test_all_that_is_wrong_is_said_before_anything_starts(tmp_path: Path, golden: Path) -> None:
    """Exit code 2, a line for each problem with its path."""
    tokenizer = str(golden / "tokenizer")
    ended = started(
        tmp_path,
        {
            "listen": "nowhere",
            "models": [{"name": "tiny", "tokenizer": tokenizer}, {"name": "other", "tokenizer": "/nowhere"}],
            "placement": {"policy": "best"},
        },
    )
    lines = ended.stderr.strip().split("\n")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(lines) == 4
    said = ("listen: ", "placement.policy: ", "nowhere to send", "models.1.tokenizer: ")
    assert all(words in line for words, line in zip(said, lines, strict=True))


def test_missing_tokenizers_are_all_named(tmp_path: Path) -> None:
    """With what to do, in a line each."""
    models = [{"name": name, "tokenizer": f"/nowhere/{name}"} for name in ("a", "b")]
    ended = started(tmp_path, {"listen": "127.0.0.1:0", "models": models, "replicas": [{"url": "http://127.0.0.1:1"}]})
    assert ended.returncode == 2
    assert [line.split(":")[1].strip() for line in ended.stderr.strip().split("\n")] == [
        "models.0.tokenizer", "models.1.tokenizer",
    ]  # fmt: skip


def test_a_port_in_use_is_one_line(tmp_path: Path, golden: Path) -> None:
    """Not a traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = started(
            tmp_path,
            {
                "listen": f"127.0.0.1:{taken.getsockname()[1]}",
                "models": [{"name": "tiny", "tokenizer": str(golden / "tokenizer")}],
                "replicas": [{"url": "http://127.0.0.1:1"}],
            },
        )
    assert ended.returncode == 2
    assert "already in use" in ended.stderr
    assert len([line for line in ended.stderr.strip().split("\n") if line.startswith("warmroute router:")]) == 1
    assert "Traceback" not in ended.stderr


def test_redis_that_is_not_there_is_said_and_the_router_lives(tmp_path: Path, golden: Path) -> None:
    """Alive, not ready, with the reason; a Redis outage at start is no reason to crash."""
    path = tmp_path / "router.yaml"
    model = {"name": "tiny", "tokenizer": str(golden / "tokenizer")}
    path.write_text(json.dumps({"listen": "127.0.0.1:0", "models": [model], "redis": "redis://127.0.0.1:1/0"}))
    process = subprocess.Popen([*COMMAND, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        address = json.loads(process.stdout.readline())["http"].removeprefix("http://")
        errors = ""
        while "Redis" not in errors and (line := process.stderr.readline()):
            errors += line
        answers = {}
        for name in ("/healthz", "/readyz"):
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("GET", name)
            response = connection.getresponse()
            answers[name] = (response.status, json.loads(response.read()))
            connection.close()
    finally:
        process.send_signal(signal.SIGTERM)
        errors += process.communicate(timeout=30)[1]
    assert answers["/healthz"][0] == 200
    assert answers["/readyz"][0] == 503
    assert any("redis" in reason for reason in answers["/readyz"][1]["reasons"])
    assert process.returncode == 0
    assert "Redis" in errors
    assert "Traceback" not in errors


def stream(address: str, tokens: int, seen: list[bytes], begun: threading.Event) -> None:
    """Read a stream to its end."""
    connection = http.client.HTTPConnection(address, timeout=60)
    body = {"model": "tiny", "prompt": "a long answer", "max_tokens": tokens, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    begun.set()
    seen.append(response.read())
    connection.close()


@pytest.mark.slow
def test_sigterm_lets_streams_finish_and_turns_readiness_off_at_once() -> None:
    """Running streams end complete, new ones go elsewhere, exit code 0 (K8S-03)."""
    engine = EngineOptions(decode_step_s=0.02, prefill_tokens_per_s=100_000)
    with LocalFleet(engine, replicas=1, agents=False, router={"timeouts": {"drain_delay_s": 0.5}}) as fleet:
        address = fleet.router.http.removeprefix("http://")
        seen: list[bytes] = []
        begun = [threading.Event() for _ in range(5)]
        threads = [threading.Thread(target=stream, args=(address, 100, seen, event)) for event in begun]
        for thread in threads:
            thread.start()
        assert all(event.wait(30) for event in begun)
        fleet.router.child.signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        status = 200
        while status != 503 and time.monotonic() < deadline:
            connection = http.client.HTTPConnection(address, timeout=5)
            connection.request("GET", "/readyz")
            status = connection.getresponse().status
            connection.close()
        assert status == 503
        for thread in threads:
            thread.join(60)
        assert fleet.router.child.wait(30) == 0
    assert len(seen) == 5
    assert all(data.endswith(b"data: [DONE]\n\n") for data in seen)


@pytest.mark.slow
def test_a_second_sigterm_ends_the_pause_and_cuts_no_stream() -> None:
    """The pause of 20 s is over at once; the stream that runs is finished all the same."""
    engine = EngineOptions(decode_step_s=0.02, prefill_tokens_per_s=100_000)
    with LocalFleet(engine, replicas=1, agents=False, router={"timeouts": {"drain_delay_s": 20}}) as fleet:
        address = fleet.router.http.removeprefix("http://")
        seen: list[bytes] = []
        begun = threading.Event()
        thread = threading.Thread(target=stream, args=(address, 100, seen, begun))
        thread.start()
        assert begun.wait(30)
        fleet.router.child.signal(signal.SIGTERM)
        status = 200
        while status != 503:
            connection = http.client.HTTPConnection(address, timeout=5)
            connection.request("GET", "/readyz")
            status = connection.getresponse().status
            connection.close()
        fleet.router.child.signal(signal.SIGTERM)
        thread.join(60)
        assert fleet.router.child.wait(10) == 0
    assert seen[0].endswith(b"data: [DONE]\n\n")


@pytest.mark.slow
def test_requests_go_on_when_a_replica_is_killed() -> None:
    """Nothing that was not begun fails: connect failures go to the other replica."""
    engine = EngineOptions(decode_step_s=0.001, prefill_tokens_per_s=200_000)
    with LocalFleet(engine, replicas=2, agents=False) as fleet:
        address = fleet.router.http.removeprefix("http://")
        fleet.engines[0].child.signal(signal.SIGKILL)
        fleet.engines[0].child.wait(10)
        replicas = set()
        for number in range(20):
            connection = http.client.HTTPConnection(address, timeout=30)
            body = {"model": "tiny", "prompt": f"question {number}", "max_tokens": 2}
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200
            replicas.add(response.headers["x-warmroute-replica"])
            connection.close()
    assert replicas == {"r1"}
