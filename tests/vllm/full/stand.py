"""One engine that can be killed and started again in its place, with an agent, an ear and a router: for faults."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from router.tools.processes import Child, StartError, stop_all, wait_for
from tests.vllm.engines import (
    BLOCK_SIZE,
    MODEL,
    Answer,
    call,
    engine_command,
    engine_environment,
    free_port,
    free_ports,
    wait_until_healthy,
)
from tests.vllm.full.published import Held

SETTLE_S = 90.0
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Stand:
    """The processes; `children` are what must be stopped.

    Attributes:
        model: The engine's folder.
        options: Further ones of the engine's command.
        environment: Further variables of the engine.
        ranks: Data-parallel ranks.
        left_out: Options that the engine is started without.
    """

    folder: Path
    redis_url: str
    model: Path
    core: int
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    left_out: tuple[str, ...] = ()
    children: dict[str, Child] = field(default_factory=dict)
    router: str = ""
    _draw: random.Random = field(default_factory=lambda: random.Random(11))

    def __post_init__(self) -> None:
        """Choose ports, which stay the same in every life."""
        self.port = free_port()
        self.events = free_ports(2 * self.ranks)
        self.engine = f"http://127.0.0.1:{self.port}"
        self.held = Held(self.events, self.ranks)

    def start_engine(self) -> None:
        """Start the engine, again after it was killed, and wait until it answers."""
        replay = self.events + self.ranks
        sockets = {"endpoint": f"tcp://*:{self.events}", "replay_endpoint": f"tcp://*:{replay}"}
        command = [*engine_command(self.model, self.port, sockets), *self.options]
        command = [word for word in command if word not in self.left_out]
        self.held.begin()
        engine = Child("engine", command, self.folder, engine_environment(self.core) | self.environment)
        self.children["engine"] = engine
        wait_until_healthy(engine, self.engine)

    def start(self, command: str, *arguments: str, name: str = "") -> dict[str, Any]:
        """Start one of our own commands and wait for its ready line."""
        child = Child(name or command, [sys.executable, "-m", "router.cli", command, *arguments], self.folder)
        self.children[name or command] = child
        return dict(wait_for(f"the {command} is ready", child.ready_line, [child], SETTLE_S))

    def start_agent(self, *arguments: str) -> None:
        """Attach an agent to the engine."""
        self.start("agent", "--engine-url", self.engine, "--redis", self.redis_url, "--replica-id", "r0", *arguments)

    def start_router(self, **model: Any) -> None:
        """Start a router; `model` is what its configuration says of the only one."""
        config = {"listen": "127.0.0.1:0", "models": [{"name": MODEL, **model}], "redis": self.redis_url}
        (self.folder / "router.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self.router = self.start("router", "--config", str(self.folder / "router.yaml"))["http"]

    def stop(self, name: str) -> None:
        """End a process in order."""
        stop_all([self.children.pop(name)], grace_s=20.0)

    def kill(self, name: str) -> None:
        """End a process, and all that it started, with SIGKILL."""
        self.children.pop(name).kill()

    def until(self, what: str, condition: Callable[[], Any], timeout_s: float = SETTLE_S) -> Any:
        """The first true value of `condition`, or a failure."""
        return wait_for(what, condition, [self.children["router"]], timeout_s)

    def ask(self, path: str, body: dict[str, Any], **headers: str) -> Answer:
        """One request through the router; it must succeed."""
        body = {"model": MODEL, "temperature": 0, "max_tokens": 1, **body}
        answer = call(self.router, "POST", path, body, headers)
        assert answer.status == 200, answer.text
        return answer

    def ask_engine(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Answer:
        """One request past the router."""
        answer = call(self.engine, "POST", path, body, headers)
        assert answer.status == 200, answer.text
        return answer

    def replica(self) -> dict[str, Any]:
        """What the router tells of the replica; empty while it knows of none."""
        replicas = call(self.router, "GET", "/admin/replicas").json["replicas"]
        return dict(replicas[0]) if replicas else {}

    def units(self) -> list[dict[str, Any]]:
        """What the router tells of the replica's ranks."""
        return list(self.replica().get("units", []))

    def trusted(self) -> bool:
        """Whether every rank's hashes are proven and its blocks known."""
        units = self.units()
        return len(units) == self.ranks and all(unit["trust"] == "exact" for unit in units)

    def prediction(self, kind: str) -> dict[str, Any]:
        """What became of the predictions for a kind of requests, at the first rank."""
        units = self.units()
        found = [item for item in units[0]["predictions"] if item["kind"] == kind] if units else []
        return dict(found[0]) if found else {}

    def indexed(self, rank: int = 0) -> set[int]:
        """Hashes of the blocks that the router's index holds for a rank."""
        listed = call(self.router, "GET", "/admin/replicas/r0/blocks?limit=100000").json["units"]
        unit = next(item for item in listed if item["unit"] == f"r0/{rank}")
        return {int(block, 16) for block, _, _ in unit["listed"]}

    def settle(self, rank: int = 0) -> set[int]:
        """Return what a rank holds once all that it has done is told, and the router's index is the same.

        A request of one block that nobody has sent goes past the router: events come in order, so when its block is
        announced, all before it were.
        """
        mark = tuple(self._draw.randrange(300, 4_096) for _ in range(BLOCK_SIZE))
        self.ask_rank(rank, [*mark, 1])

        def told() -> bool:
            self.held.blocks(rank)
            return mark in self.held.roots

        def same() -> bool:
            return self.indexed(rank) == self.held.blocks(rank)

        self.until("the engine told of its last step", told)
        try:
            self.until(f"the router's index of rank {rank} equals what the engine holds", same)
        except StartError as error:
            indexed, held = self.indexed(rank), self.held.blocks(rank)
            error.add_note(f"{len(indexed - held)} blocks are the router's alone, {len(held - indexed)} the engine's")
            error.add_note(f"problems: {self.held.problems}; units: {self.units()}")
            raise
        assert not self.held.problems
        return self.held.blocks(rank)

    def prove(self) -> None:
        """Have each rank announce a chain from its root, which proves its scheme, and wait until the router knows."""
        for rank in range(self.ranks):
            self.ask_rank(rank, [self._draw.randrange(300, 4_096) for _ in range(2 * BLOCK_SIZE)])
        self.until("the router trusts the engine", self.trusted)

    def ask_rank(self, rank: int, ids: list[int]) -> Answer:
        """One completion past the router, at one of its ranks."""
        headers = {"x-data-parallel-rank": str(rank)} if self.ranks > 1 else {}
        return self.ask_engine(COMPLETIONS, {"model": MODEL, "prompt": ids, "max_tokens": 1}, **headers)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a series of the router's; 0 where there is none."""
        for line in call(self.router, "GET", "/metrics").text.splitlines():
            if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                return float(line.rpartition(" ")[2])
        return 0.0

    def log(self, name: str, words: str) -> list[str]:
        """The lines with these words that a process has logged."""
        lines = (self.folder / f"{name}.err").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if words in line]


def doctor(*arguments: str) -> tuple[int, str]:
    """The exit code and the page of `warmroute doctor`."""
    command = [sys.executable, "-m", "router.cli", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, " ".join(done.stdout.split())
