"""The engine's preStop hook, run as rendered against a server that tells vLLM's two figures."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest


class Metrics(HTTPServer):
    """Serves /metrics; `running` holds the number of running requests that each answer tells, the last one for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.running: list[int] = [0]
        self.answers = 0


class _Handler(BaseHTTPRequestHandler):
    server: Metrics

    def do_GET(self) -> None:
        running = self.server.running[min(self.server.answers, len(self.server.running) - 1)]
        self.server.answers += 1
        body = (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            f'vllm:num_requests_running{{engine="0",model_name="tiny"}} {float(running)}\n'
            'vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0\n'
            'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0\n'
        ).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    """The server, on a free port."""
    server = Metrics()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pre_stop(render: Callable[..., list[dict[str, Any]]], metrics: Metrics) -> Callable[[int], tuple[int, float]]:
    """`pre_stop(drain_seconds)`: exit code and seconds of the hook; 1 s of them is the announcement."""

    def run(drain_seconds: int) -> tuple[int, float]:
        values = {
            "engine": {"port": metrics.server_port},
            "grace": {"announceSeconds": 1, "drainSeconds": drain_seconds},
        }
        pools = [m for m in render(values) if "warmroute/pool" in m["metadata"]["labels"] and m["kind"] == "Deployment"]
        engine = pools[0]["spec"]["template"]["spec"]["containers"][0]
        _, *arguments = engine["lifecycle"]["preStop"]["exec"]["command"]
        started = time.monotonic()
        done = subprocess.run([sys.executable, *arguments], timeout=30)
        return done.returncode, time.monotonic() - started

    return run


def test_idle_engine_is_stopped_after_the_announcement(pre_stop: Callable[[int], tuple[int, float]]) -> None:
    """With nothing running the hook lasts as long as the announcement alone."""
    code, seconds = pre_stop(20)
    assert code == 0
    assert 1.0 <= seconds < 5.0


def test_running_requests_are_waited_for(metrics: Metrics, pre_stop: Callable[[int], tuple[int, float]]) -> None:
    """The hook ends with the first answer that tells of no running request, and not before."""
    metrics.running = [2, 1, 0]
    code, _ = pre_stop(20)
    assert code == 0
    assert metrics.answers == 3


def test_wait_has_an_end(metrics: Metrics, pre_stop: Callable[[int], tuple[int, float]]) -> None:
    """A request that does not finish is waited for no longer than `drainSeconds`."""
    metrics.running = [1]
    code, seconds = pre_stop(1)
    assert code == 0
    assert 2.0 <= seconds < 6.0
