"""Real simulated engines in processes of their own, on free ports."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

COMMAND = [sys.executable, "-m", "router.cli", "simengine"]


@dataclass
class RunningEngine:
    """One engine process and where it listens."""

    process: subprocess.Popen[str]
    url: str
    events: list[str]
    replay: list[str]

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: (status, headers in lower case, body). `body` is sent as JSON
        unless it is bytes."""
        data, sent = body, dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """The JSON of a POST that must succeed."""
        status, _, data = self.send("POST", path, body, headers)
        assert status == 200, data
        return json.loads(data)

    def metric(self, name: str, rank: int = 0) -> float:
        """One value of /metrics."""
        for line in self.send("GET", "/metrics")[2].decode().splitlines():
            if line.startswith(f'{name}{{engine="{rank}"'):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"{name} is not in /metrics")

    def stop(self) -> int:
        """Send SIGTERM; the exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(timeout=10)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        return code


def start(golden: Path, *options: str) -> RunningEngine:
    """Start an engine of the tiny model and wait until it is ready."""
    fixed = ["--model", "/models/tiny", "--served-model-name", "tiny", "--tokenizer", str(golden / "tokenizer")]
    process = subprocess.Popen([*COMMAND, *fixed, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait(timeout=10)}"
    ready = json.loads(line)
    assert ready["ready"] == "simengine"
    return RunningEngine(process, ready["http"], ready["events"], ready["replay"])


@pytest.fixture
def start_engine(golden: Path) -> Iterator[Callable[..., RunningEngine]]:
    """`start_engine(*options)`: an engine that is stopped after the test."""
    running: list[RunningEngine] = []

    def started(*options: str) -> RunningEngine:
        running.append(start(golden, *options))
        return running[-1]

    yield started
    for engine in running:
        engine.stop()


FAST = ("--decode-step-s", "0.001", "--prefill-tokens-per-s", "1000000", "--hash-algo", "sha256_cbor")
"""An engine that does not keep a test waiting."""


@pytest.fixture(scope="module")
def engine(golden: Path) -> Iterator[RunningEngine]:
    """A fast engine that a module's tests share; they use prompts of their own."""
    running = start(golden, *FAST, "--lora", "ad=/adapters/ad")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def recorded_engine(golden: Path) -> Iterator[RunningEngine]:
    """An engine set up like the one whose answers are recorded in engine_http.json."""
    options = ("--block-size", "32", "--max-model-len", "2048", "--num-blocks", "1024")
    running = start(golden, *FAST, *options)
    yield running
    running.stop()
