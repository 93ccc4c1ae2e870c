"""A real Envoy before real processes: it carries the traffic, and asks a picker where each request goes."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench import envoy
from router.tools.local_fleet import EngineOptions, LocalFleet
from router.tools.processes import Child, stop_all, wait_for

FAST = EngineOptions(num_blocks=512, prefill_tokens_per_s=200_000, decode_step_s=0.001)


@pytest.fixture(scope="session")
def envoy_program() -> Path:
    """Envoy; a failure, never a skip, where it can't be had."""
    try:
        return envoy.program()
    except envoy.FetchError as error:
        pytest.fail(f"Envoy can't be had: {error}")


class Picker:
    """A picker as a process. `port` is its gRPC port; the same after a restart."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self.file = folder / "picker.yaml"
        self.start()

    def start(self) -> None:
        """Start it, again at the port that it had."""
        self.file.write_text(json.dumps(self.config))
        command = [sys.executable, "-m", "router.cli", "picker", "--config", str(self.file)]
        self.child = Child("picker", command, self.folder)
        self.ready = wait_for("the picker", self.child.ready_line, [self.child], 30.0)
        self.port = int(self.ready["grpc"].rpartition(":")[2])
        self.config["picker"]["listen"] = f"127.0.0.1:{self.port}"
        self.admin = self.ready["admin"]

    def read(self, path: str) -> Any:
        """Return what its admin says."""
        with urllib.request.urlopen(self.admin + path, timeout=10) as answer:  # noqa: S310 - our own
            data = answer.read()
        return json.loads(data) if answer.headers["content-type"].startswith("application/json") else data.decode()


class Envoy:
    """Envoy as a process; `url` is where clients go."""

    def __init__(self, program: Path, folder: Path, config: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file, told = folder / "envoy.json", folder / "admin"
        file.write_text(json.dumps(config))
        self.child = Child("envoy", envoy.command(program, file, told), folder)
        self.admin = "http://" + wait_for(
            "Envoy", lambda: told.exists() and told.read_text().strip(), [self.child], 30.0
        )
        self.url = "http://" + wait_for("Envoy's listener", self._listener, [self.child], 30.0)

    def read(self, path: str) -> str:
        """Return what its admin says."""
        with urllib.request.urlopen(self.admin + path, timeout=10) as answer:  # noqa: S310 - our own
            return str(answer.read().decode())

    def _listener(self) -> str | None:
        if self.read("/ready").strip() != "LIVE":
            return None
        statuses = json.loads(self.read("/listeners?format=json")).get("listener_statuses", [])
        for status in statuses:
            found = status["local_address"]["socket_address"]
            return f"{found['address']}:{found['port_value']}"
        return None


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """Three replicas with agents, which have seen a prompt each: the first one proves how they name blocks."""
    with LocalFleet(FAST, replicas=3) as running:
        for engine in running.engines:
            body = json.dumps({"model": "tiny", "prompt": list(range(200)), "max_tokens": 1}).encode()
            url, kind = engine.http + "/v1/completions", {"content-type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(url, body, kind), timeout=30):  # noqa: S310 - our own
                pass
        yield running


@pytest.fixture(scope="module")
def new_picker(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Picker]]:
    """`new_picker(key=...)`: a picker of the fleet, with more of the configuration."""
    made: list[Picker] = []

    def make(**changes: Any) -> Picker:
        config = {
            "models": [{"name": "tiny", "tokenizer": str(FAST.folder)}],
            "redis": {"url": fleet.redis_url},
            "admin": {"listen": "127.0.0.1:0"},
            "picker": {"listen": "127.0.0.1:0"},
            "timeouts": {"drain_delay_s": 0.1, "drain_s": 5},
            **changes,
        }
        made.append(Picker(tmp_path_factory.mktemp("picker"), config))
        picker = made[-1]
        wait_for("the picker's fleet", lambda: _sees(picker, len(fleet.engines)), [picker.child], 30.0)
        return picker

    yield make
    stop_all([picker.child for picker in made])


def _sees(picker: Picker, count: int) -> bool:
    replicas = picker.read("/admin/replicas")["replicas"]
    # What was remembered of a unit ends when it is proven: a test may not begin in between.
    seen = [(replica["state"], unit["trust"]) for replica in replicas for unit in replica["units"]]
    return seen == [("ready", "exact")] * count


@pytest.fixture(scope="module")
def new_envoy(
    fleet: LocalFleet, envoy_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Envoy]]:
    """`new_envoy(picker, mode=..., fail_open=...)`: an Envoy that asks the picker; see `envoy.config`.

    `without`: a replica's number that it does not know.
    """
    with ExitStack() as stack:

        def make(picker: Picker, without: int | None = None, **options: Any) -> Envoy:
            known = [engine for number, engine in enumerate(fleet.engines) if number != without]
            engines = [engine.http.removeprefix("http://") for engine in known]
            config = envoy.config(picker.port, engines, **options)
            made = Envoy(envoy_program, tmp_path_factory.mktemp("envoy"), config)
            stack.callback(stop_all, [made.child])
            return made

        yield make
