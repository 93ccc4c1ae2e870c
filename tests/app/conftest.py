"""A real fleet for the tests of the whole path: Valkey, two simulated engines with agents, the router."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet
from tests.http_client import Client

COMMAND = [sys.executable, "-m", "router.cli", "router", "--config"]
FAST = EngineOptions(num_blocks=512, prefill_tokens_per_s=200_000, decode_step_s=0.001)


class WorkerClient(Client):
    """Speaks to one worker of a router, on the socket that its supervisor asks it over."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"http://{path.stem}")
        self._path = path

    def connection(self) -> http.client.HTTPConnection:
        """See `Client`."""
        connection = super().connection()
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(30)
        connection.sock.connect(str(self._path))
        return connection


class RouterProcess:
    """A router as a process, with a configuration that can be changed."""

    def __init__(self, folder: Path, config: dict[str, Any], temporary: Path) -> None:
        self.environ = {**os.environ, "TMPDIR": str(temporary)}
        self.least = config
        self.file = folder / "router.yaml"
        self.write(config)
        with (folder / "stderr").open("w") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, str(self.file)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env=self.environ,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(20)
            self.process.stdout.close()
        assert line, (folder / "stderr").read_text()
        self.ready = json.loads(line)
        self.errors = folder / "stderr"
        self.client = Client(self.ready["http"])
        self.admin = Client(self.ready["admin"])

    def write(self, config: object) -> None:
        """Replace the configuration at once, as editors and Kubernetes do."""
        text = config if isinstance(config, str) else json.dumps(config)
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)

    def config(self, **headers: str) -> dict[str, Any]:
        """Return what /admin/config says."""
        status, _, answer = self.admin.send("GET", "/admin/config", **headers)
        assert status == 200, answer
        return answer

    def metric(self, line: str) -> float:
        """Return the value of a sample, named as the exposition writes it."""
        _, _, text = self.admin.send("GET", "/metrics")
        found = [row for row in text.decode().splitlines() if row.startswith(line + " ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    def stop(self) -> int:
        """End it; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@pytest.fixture
def router_process(tmp_path: Path, golden: Path) -> Iterator[Callable[..., RouterProcess]]:
    """`router_process(key=...)`: a router of the least configuration with these keys."""
    made: list[RouterProcess] = []
    temporary = Path(tempfile.mkdtemp(prefix="wr-"))  # short: a Unix socket's path has 108 bytes

    def make(**changes: Any) -> RouterProcess:
        least = {
            "listen": "127.0.0.1:0",
            "models": [{"name": "tiny", "tokenizer": str(golden / "tokenizer")}],
            "replicas": [{"url": "http://127.0.0.1:1"}],
        }
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(RouterProcess(folder, {**least, **changes}, temporary))
        return made[-1]

    yield make
    for router in made:
        if router.process.poll() is None:
            router.process.kill()
            router.process.wait()
        router.process.stdout.close()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """Two replicas with agents behind a router."""
    with LocalFleet(FAST, replicas=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(fleet: LocalFleet) -> Client:
    """A client of the fleet's router."""
    return Client(fleet.router.http)


@pytest.fixture
def workers_in() -> Callable[[Path], list[Client]]:
    """`workers_in(folder)`: a client of each worker of the one router whose TMPDIR the folder is."""

    def find(folder: Path) -> list[Client]:
        return [WorkerClient(path) for path in sorted(folder.glob("warmroute-workers-*/worker-*.sock"))]

    return find


@pytest.fixture
def client_of() -> Callable[[str], Client]:
    """`client_of(url)`: a client of another router or engine."""
    return Client


@pytest.fixture
def wait_for_blocks(client: Client, eventually: Callable[..., Any]) -> Callable[[int], Any]:
    """`await wait_for_blocks(n)`: until the router's index holds at least n blocks of exact units."""

    def total() -> int:
        _, _, answer = client.send("GET", "/admin/replicas")
        units = [unit for replica in answer["replicas"] for unit in replica["units"]]
        return sum(unit["blocks"] for unit in units if unit["trust"] == "exact")

    async def wait(blocks: int) -> None:
        await eventually(lambda: total() >= blocks, what=f"{blocks} blocks in the index")

    wait.total = total  # type: ignore[attr-defined]
    return wait
