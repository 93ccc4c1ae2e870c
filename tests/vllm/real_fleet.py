"""Two real engines with agents and the router, all as processes, for the tests against the real thing."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from router.kv.engine_metrics import totals as engine_totals
from router.tools.processes import Child, stop_all, wait_for
from tests.vllm.engines import (
    BLOCK_SIZE,
    MODEL,
    TOKENIZER,
    Answer,
    call,
    engine_command,
    engine_environment,
    free_port,
    wait_until_healthy,
)

SETTLE_S = 60.0


@dataclass
class RealFleet:
    """The running fleet. Replicas are r0 and r1.

    r0 publishes on TCP, and its agent finds the sockets by itself; r1 publishes on sockets in a folder, as in the
    chart's pods, and keeps but two batches for replay, so that an agent that comes late sees no root of any chain.
    """

    folder: Path
    redis_url: str
    engines: dict[str, str] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    router: str = ""
    admin: str = ""

    def start(self, name: str, command: list[str], environ: dict[str, str] | None = None) -> Child:
        """Start a process that ends with us."""
        child = Child(name, command, self.folder, environ)
        self.children[name] = child
        return child

    def start_warmroute(self, name: str, *arguments: str) -> dict[str, Any]:
        """Start one of our own commands and wait for its ready line."""
        child = self.start(name, [sys.executable, "-m", "router.cli", *arguments])
        ready = wait_for(f"{name} is ready", child.ready_line, [child], 30.0)
        return dict(ready)

    def start_agent(self, replica: str, *, life: int = 0) -> dict[str, Any]:
        """Attach an agent to a replica's engine; `life` tells the names of several apart."""
        sockets = self.folder / replica
        where = ("--kv-events", f"ipc://{sockets}.events", "--kv-replay", f"ipc://{sockets}.replay")
        arguments = ["--engine-url", self.engines[replica], "--redis", self.redis_url, "--replica-id", replica]
        arguments += where if replica == "r1" else ()
        return self.start_warmroute(f"agent-{replica}-{life}", "agent", *arguments)

    def until(self, what: str, condition: Callable[[], Any], timeout_s: float = SETTLE_S) -> Any:
        """The first true value of `condition`, or a failure."""
        return wait_for(what, condition, [self.children["router"]], timeout_s)

    def ask(self, path: str, body: dict[str, Any]) -> Answer:
        """One request through the router; it must succeed."""
        body = {"model": MODEL, "temperature": 0, "return_token_ids": True, **body}
        answer = call(self.router, "POST", path, body)
        assert answer.status == 200, answer.text
        return answer

    def ask_engine(self, replica: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """One request past the router, to an engine itself."""
        answer = call(self.engines[replica], "POST", path, body)
        assert answer.status == 200, answer.text
        return answer

    def explain(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The Decision that a request would get now; nothing is sent."""
        body = {"model": MODEL, "temperature": 0, **body}
        answer = call(self.admin, "POST", f"/admin/explain?path={path}", body)
        assert answer.status == 200, answer.text
        return dict(answer.json)

    def matched(self, replica: str, path: str, body: dict[str, Any]) -> int:
        """Tokens of a request that the router now believes `replica` to have cached."""
        candidates = self.explain(path, body)["candidates"]
        return next((int(c["matched_tokens"]) for c in candidates if c["replica"] == replica), 0)

    def replica(self, name: str) -> dict[str, Any]:
        """What the router's /admin/replicas tells of a replica."""
        replicas = call(self.admin, "GET", "/admin/replicas").json["replicas"]
        return next((dict(item) for item in replicas if item["replica"] == name), {})

    def trust(self, name: str) -> str:
        """The trust in a replica's only unit."""
        units = self.replica(name).get("units", [])
        return str(units[0]["trust"]) if units else "unknown"

    def ledger(self) -> dict[str, int]:
        """The router's reuse ledger: stages and lost tokens of all requests so far."""
        total = call(self.admin, "GET", "/admin/ledger").json["total"]
        return {**total["tokens"], **total["lost_tokens"]}

    def engine_counters(self) -> tuple[int, int]:
        """Prompt tokens that both engines looked up in their prefix caches since their start, and that they found."""
        counted = [engine_totals(call(url, "GET", "/metrics").text) for url in self.engines.values()]
        return sum(one.query_tokens or 0 for one in counted), sum(one.hit_tokens or 0 for one in counted)

    def finished_requests(self, replica: str) -> int:
        """How many requests an engine has answered since its start."""
        text = call(self.engines[replica], "GET", "/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("vllm:request_success_total{")]
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        """One request to the router, however it ends."""
        return call(self.router, method, path, body)

    def stop(self, name: str) -> int | None:
        """End a process with SIGTERM; its exit code, None if it did not end within 20 s."""
        self.children[name].signal(signal.SIGTERM)
        return self.children[name].wait(20.0)

    def kill(self, name: str) -> None:
        """End a process and all that it started with SIGKILL."""
        self.children[name].signal(signal.SIGKILL)
        self.children[name].wait(20.0)

    def settled(self, answer: Answer, salt: str | None = None) -> None:
        """Wait until the router has heard of all whole blocks that a request left: prompt and answer, less its last."""
        ids = answer.token_ids
        assert len(ids) == answer.prompt_tokens + answer.json["usage"]["completion_tokens"]
        whole = (len(ids) - 1) // BLOCK_SIZE * BLOCK_SIZE
        body = {"prompt": ids} | ({"cache_salt": salt} if salt else {})
        self.until(
            f"{answer.replica} announced {whole} tokens",
            lambda: self.matched(answer.replica, "/v1/completions", body) == whole,
        )


@contextmanager
def real_fleet(model: Path, redis_url: str, folder: Path, *options: str, **router: Any) -> Iterator[RealFleet]:
    """The whole fleet, warm: both replicas ready, and their hash scheme proven.

    `options` are further ones of the engines, `router` is more of the router's configuration.
    """
    # ipc paths are short: a socket's path may have 107 characters.
    running = RealFleet(folder, redis_url)
    started = time.monotonic()
    try:
        cores = sorted(os.sched_getaffinity(0))
        sockets = {
            "r0": {"endpoint": f"tcp://*:{free_port()}", "replay_endpoint": f"tcp://127.0.0.1:{free_port()}"},
            "r1": {
                "endpoint": f"ipc://{running.folder}/r1.events",
                "replay_endpoint": f"ipc://{running.folder}/r1.replay",
                "buffer_steps": 2,
            },
        }
        for number, (name, events) in enumerate(sockets.items()):
            port = free_port()
            running.engines[name] = f"http://127.0.0.1:{port}"
            command = [*engine_command(model, port, events), *options]
            running.start(f"engine-{name}", command, engine_environment(cores[number % len(cores)]))
        config = {
            "listen": "127.0.0.1:0",
            "models": [{"name": MODEL, "tokenizer": str(TOKENIZER)}],
            "redis": redis_url,
            **router,
        }
        file = running.folder / "router.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        ready = running.start_warmroute("router", "router", "--config", str(file))
        running.router, running.admin = ready["http"], ready["admin"]
        engines = [running.children[f"engine-{name}"] for name in sockets]
        for name, url in running.engines.items():
            wait_until_healthy(running.children[f"engine-{name}"], url, engines)
        print(f"two engines started in {time.monotonic() - started:.0f} s")
        for name in sockets:
            running.start_agent(name)
            # An agent that starts with its engine proves the scheme by the first root block that it sees.
            running.ask_engine(name, "/v1/completions", {"model": MODEL, "prompt": [300] * 40, "max_tokens": 1})
        for name in sockets:
            running.until(f"{name} is trusted", lambda name=name: running.trust(name) == "exact", 60.0)
        yield running
    finally:
        stop_all(list(running.children.values()), grace_s=20.0)
