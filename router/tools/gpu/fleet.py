"""Engines with agents and Valkey, and before them a router of one policy after the other."""

from __future__ import annotations

import json
import random
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from router.tools.chaos.processes import free_port
from router.tools.gpu.engines import MODEL, Device, make_model
from router.tools.local_valkey import start_valkey
from router.tools.processes import Child, stop_all, wait_for

ENGINE_START_S = 600.0
START_S = 60.0


class EngineFleet:
    """Starts on entering, ends on leaving. Use it from the main thread (see processes.Child).

    Attributes:
        engines: URLs.
        model: The folder with tokenizer and configuration.
    """

    def __init__(self, device: Device, folder: Path, replicas: int) -> None:
        self._device = device
        self._folder = folder
        self._rng = random.Random(secrets.randbits(64))
        self._replicas = replicas
        self._children: list[Child] = []
        self._valkey: Child | None = None
        self._redis_url = ""
        self.engines: list[str] = []
        self.model = Path()

    def __enter__(self) -> EngineFleet:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop_all(self._children, grace_s=20.0)
        if self._valkey is not None:
            stop_all([self._valkey])

    def _start(self) -> None:
        self.model = make_model(self._device, self._folder / "model")
        self._valkey, self._redis_url = start_valkey(self._folder)
        for number in range(self._replicas):
            port, events, replay = (free_port(self._rng) for _ in range(3))
            command = self._device.command(self.model, port, events, replay)
            self._children.append(Child(f"engine-{number}", command, self._folder, self._device.environment(number)))
            self.engines.append(f"http://127.0.0.1:{port}")
        everybody = self.engines
        wait_for("all engines answer", lambda: all(map(_answers, everybody)), self._children, ENGINE_START_S)
        for number, url in enumerate(self.engines):
            agent = self._warmroute(f"agent-{number}", "agent", *self._agent(number, url))
            wait_for(f"agent {number} is ready", agent.ready_line, self._children, START_S)

    def _agent(self, number: int, url: str) -> tuple[str, ...]:
        state = ("--state-dir", str(self._folder / "agents"))
        return ("--engine-url", url, "--redis", self._redis_url, "--replica-id", f"r{number}", *state)

    def _warmroute(self, name: str, *command: str) -> Child:
        child = Child(name, [sys.executable, "-m", "router.cli", *command], self._folder)
        self._children.append(child)
        return child

    @contextmanager
    def router(self, policy: str) -> Iterator[str]:
        """Let a router of this policy stand before engines with empty caches; yield its URL."""
        for url in self.engines:
            _post(f"{url}/reset_prefix_cache")
            # The engine announces that with its next step.
            _post(f"{url}/v1/completions", {"model": MODEL, "prompt": [300] * self._device.block_size, "max_tokens": 1})
        config = {
            "listen": "127.0.0.1:0",
            "models": [{"name": MODEL, "tokenizer": str(self.model), "block_size": self._device.block_size}],
            "redis": self._redis_url,
            "placement": {"policy": policy},
            "log": {"level": "warning", "access": False},
        }
        path = self._folder / f"router-{policy}.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        child = self._warmroute(f"router-{policy}", "router", "--config", str(path))
        try:
            url = str(wait_for("the router is ready", child.ready_line, self._children, START_S)["http"])
            wait_for("the router trusts all replicas", lambda: self._trusts_all(url), self._children, START_S)
            yield url
        finally:
            stop_all([child])
            self._children.remove(child)

    def _trusts_all(self, url: str) -> bool:
        listed = _get(f"{url}/admin/replicas").get("replicas", [])
        units = [unit for replica in listed if replica["state"] == "ready" for unit in replica["units"]]
        return len(listed) == self._replicas == len(units) and all(unit["trust"] == "exact" for unit in units)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310
            return True
    except (urllib.error.URLError, OSError):
        return False


def _get(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            return dict(json.load(response))
    except (urllib.error.URLError, ValueError, OSError):
        return {}


def _post(url: str, body: dict[str, Any] | None = None) -> None:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        response.read()
