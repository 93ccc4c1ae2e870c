"""A whole fleet on this machine: Valkey, simulated engines with agents, and a router, as real processes.

    with LocalFleet(EngineOptions(num_blocks=512)) as fleet:
        fleet.router.http          # http://127.0.0.1:40001

The demo and the integration tests use it. Engines and router start side by side, since their start is mostly imports;
agents follow, as they need to know an engine's address. However it ends, no process is left (processes.py).
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from loadtest.workloads.text import tokenizer_folder
from router.tools.local_valkey import start_valkey
from router.tools.processes import Child, StartError, stop_all, wait_for
from router.tools.scratch import Scratch

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What every simulated engine of the fleet is started with; see `warmroute simengine --help`."""

    model: str = "tiny"
    tokenizer: Path | None = None
    block_size: int = 16
    num_blocks: int = 1_024
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2_048
    prefill_tokens_per_s: float = 8_000.0
    decode_step_s: float = 0.02
    time_scale: float = 1.0
    extra: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The tokenizer's folder; the small one that ships with the package unless another is set."""
        return self.tokenizer or tokenizer_folder()

    def arguments(self) -> list[str]:
        """Return the command's arguments, with port 0 for everything."""
        return [
            *("--host", "127.0.0.1", "--port", "0", "--events-port", "0", "--replay-port", "0"),
            *("--model", self.model, "--tokenizer", str(self.folder)),
            *("--block-size", str(self.block_size), "--num-blocks", str(self.num_blocks)),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *("--max-num-batched-tokens", str(self.max_num_batched_tokens)),
            *("--prefill-tokens-per-s", str(self.prefill_tokens_per_s)),
            *("--decode-step-s", str(self.decode_step_s), "--time-scale", str(self.time_scale)),
            *self.extra,
        ]


@dataclass(frozen=True, slots=True)
class Server:
    """A started server.

    Attributes:
        child: Its process.
        http: Its URL, without a path.
        events: An engine's event socket, tcp://HOST:PORT; empty for others.
        replay: An engine's replay socket; empty for others.
    """

    child: Child
    http: str
    events: str = ""
    replay: str = ""


class LocalFleet:
    """Starts on entering, ends on leaving. Use it from the main thread (see processes.Child)."""

    def __init__(
        self,
        engine: EngineOptions | None = None,
        replicas: int = 4,
        agents: bool = True,
        router: dict[str, Any] | None = None,
        router_host: str = "127.0.0.1",
        router_port: int = 0,
        agent_arguments: tuple[str, ...] = (),
    ) -> None:
        """Describe a fleet.

        Args:
            engine: Options of every engine.
            replicas: How many engines.
            agents: True: Valkey and an agent beside each engine. False: the router knows the engines' addresses only.
            router: More of the router's configuration, as `{"placement": {"policy": "random"}}`.
            router_host: Where the router listens.
            router_port: 0: any free port.
            agent_arguments: More arguments of every agent.

        Attributes while it is started: `engines`, `agents` and `router` with their addresses, `admin_url`, `redis_url`,
        `children` (every process), `folder` (their output).
        """
        self.engine_options = engine or EngineOptions()
        self.replicas = replicas
        self.with_agents = agents
        self.redis_url = ""
        self.admin_url = ""
        self.engines: list[Server] = []
        self.agents: list[Server] = []
        self._agent_arguments = agent_arguments
        self._router_options = router or {}
        self._router_listen = f"{router_host}:{router_port}"
        self._router: Server | None = None
        self._valkey: Child | None = None
        self.children: list[Child] = []
        self.folder = Path()
        self._scratch: Scratch | None = None

    @property
    def router(self) -> Server:
        """The router, once started."""
        if self._router is None:
            raise StartError("the fleet is not started")
        return self._router

    def __enter__(self) -> LocalFleet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return when the router may take traffic for all replicas.

        Raises:
            StartError: Something did not start; what did is stopped again.
        """
        self._scratch = Scratch()
        self.folder = self._scratch.folder
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        engines = self._spawn_engines()
        if self.with_agents:
            self._valkey, self.redis_url = start_valkey(self.folder)
            self.children.append(self._valkey)
            router = self._spawn_router({"redis": self.redis_url})
        self._await_engines(engines)
        if self.with_agents:
            agents = [self._spawn(f"agent-{n}", self._agent_command(n)) for n in range(self.replicas)]
            self.agents = [Server(child, self._ready(child).get("http", "")) for child in agents]
        else:
            replicas = [{"url": engine.http, "id": f"r{n}"} for n, engine in enumerate(self.engines)]
            router = self._spawn_router({"replicas": replicas})
        ready = self._ready(router)
        self._router, self.admin_url = Server(router, ready["http"]), ready.get("admin", ready["http"])
        wait_for("the router sees all replicas", self._sees_all, self.children, START_TIMEOUT_S)

    def _spawn_engines(self) -> list[Child]:
        return [self._spawn(f"engine-{n}", self._engine_command()) for n in range(self.replicas)]

    def _await_engines(self, started: Sequence[Child]) -> None:
        self.engines = [_engine(child, self._ready(child)) for child in started]

    def kill(self, number: int) -> None:
        """Kill an engine as a crash would: what it was answering breaks off. It stays away."""
        child = self.engines[number].child
        child.kill()
        self.children.remove(child)

    def stop(self) -> None:
        """End everything, the router first, so that nothing is sent to what is going. Safe to call twice."""
        valkey = [self._valkey] if self._valkey else []
        router = [self._router.child] if self._router else []
        rest = [child for child in self.children if child not in valkey and child not in router]
        for group in (router, rest, valkey):
            stop_all(group)
        self.children.clear()
        self._router = self._valkey = None
        if self._scratch is not None:
            self._scratch.remove()

    def check(self) -> None:
        """Make sure that everything still runs.

        Raises:
            StartError: A process ended by itself.
        """
        for child in self.children:
            if child.exit_code() is not None:
                raise StartError(child.failure())

    def metrics_pages(self) -> dict[str, str]:
        """Return where engines and router tell their metrics, by name."""
        pages = {f"r{number}": f"{engine.http}/metrics" for number, engine in enumerate(self.engines)}
        return {**pages, "router": f"{self.admin_url}/metrics"} if self.admin_url else pages

    def get_json(self, path: str) -> Any:
        """Return what the router's admin answers to GET `path`, or None while it answers with an error."""
        try:
            with urllib.request.urlopen(self.admin_url + path, timeout=5) as response:  # noqa: S310
                return json.load(response)
        except (urllib.error.URLError, ValueError, OSError):
            return None

    def _sees_all(self) -> bool:
        replicas = self.get_json("/admin/replicas")
        listed = replicas.get("replicas", []) if isinstance(replicas, dict) else replicas or []
        ready = [item for item in listed if str(item.get("state", "")).lower() == "ready"]
        return len(ready) >= self.replicas and self.get_json("/readyz") is not None

    def _spawn(self, name: str, command: Sequence[str]) -> Child:
        child = Child(name, command, self.folder)
        self.children.append(child)
        return child

    def _ready(self, child: Child) -> dict[str, Any]:
        line: dict[str, Any] = wait_for(f"{child.name} is ready", child.ready_line, self.children, START_TIMEOUT_S)
        return line

    def _engine_command(self) -> list[str]:
        return [*_warmroute("simengine"), *self.engine_options.arguments()]

    def _agent_command(self, number: int) -> list[str]:
        engine = self.engines[number].http
        return [
            *_warmroute("agent"),
            *("--state-dir", str(self.folder / "agents")),
            *("--engine-url", engine, "--redis", self.redis_url, "--replica-id", f"r{number}"),
            *self._agent_arguments,
        ]

    def _spawn_router(self, source: dict[str, Any]) -> Child:
        options = self.engine_options
        model = {"name": options.model, "tokenizer": str(options.folder), "block_size": options.block_size}
        config = {"listen": self._router_listen, "models": [model], **source, **self._router_options}
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        return self._spawn("router", [*_warmroute("router"), "--config", str(path)])


def _warmroute(command: str) -> list[str]:
    # By module, so that it works where the script is not on PATH.
    return [sys.executable, "-m", "router.cli", command]


def _engine(child: Child, ready: dict[str, Any]) -> Server:
    return Server(child, ready["http"], ready["events"][0], ready["replay"][0])
