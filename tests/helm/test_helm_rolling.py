"""A rolling update under traffic, from one wire version to the next, with real processes and Kubernetes' signals.

The longest of the chart's tests (some 15 s): processes start and leave one after the other, as pods do.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.tools.local_fleet import EngineOptions
from router.tools.local_valkey import start_valkey
from router.tools.processes import Child, stop_all, wait_for
from tests.golden.make_wire import MESSAGES
from tests.helm.speaking import encode_as_version_1

ENGINE = EngineOptions(num_blocks=4_096, prefill_tokens_per_s=50_000, decode_step_s=0.01)
SPEAKING = Path(__file__).with_name("speaking.py")
GRACE = {"announceSeconds": 1, "drainSeconds": 20}
TOKENS = 60


def test_the_older_version_is_spoken_as_it_was_recorded(golden_wire: dict[str, Any]) -> None:
    """Every message that version 1 had, byte for byte."""
    recorded = golden_wire["messages"]
    assert {name: encode_as_version_1(MESSAGES[name]).hex() for name in recorded} == recorded


@pytest.fixture
def golden_wire() -> dict[str, Any]:
    """What version 1 wrote when it was current."""
    found: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/wire/v1.json").read_text())
    return found


class Cluster:
    """What Kubernetes does for the fleet: starts pods, probes them, and has them leave.

    Attributes:
        routers: Ready ones, as the Service has them: where clients go.
    """

    def __init__(self, folder: Path, pre_stop: str) -> None:
        self.folder = folder
        self.pre_stop = pre_stop
        self.children: list[Child] = []
        valkey, self.redis = start_valkey(folder)
        self.children.append(valkey)
        self.routers: list[Router] = []

    def spawn(self, name: str, version: int | None, *command: str) -> Child:
        """Start a command; of this version of the wire, None: the current one."""
        program = ["-m", "router.cli"] if version is None else [str(SPEAKING), str(version)]
        child = Child(f"{name}-{len(self.children)}", [sys.executable, *program, *command], self.folder)
        self.children.append(child)
        return child

    def ready(self, child: Child) -> dict[str, Any]:
        """Wait for it, and return its ready line."""
        line: dict[str, Any] = wait_for(child.name, child.ready_line, [child], 60)
        return line


class Pod:
    """An engine with its agent, as a pool's pods are."""

    def __init__(self, cluster: Cluster, name: str, version: int | None) -> None:
        self.name = name
        self._cluster = cluster
        self._engine = cluster.spawn(f"engine-{name}", None, "simengine", *ENGINE.arguments())
        url = cluster.ready(self._engine)["http"]
        self._port = url.rpartition(":")[2]
        self._agent = cluster.spawn(
            f"agent-{name}", version, "agent", "--engine-url", url, "--redis", cluster.redis, "--replica-id", name,
            "--drain-s", str(GRACE["drainSeconds"]), "--state-dir", str(cluster.folder / name),
        )  # fmt: skip
        cluster.ready(self._agent)

    def leave(self) -> None:
        """What the kubelet does: SIGTERM to the agent and the engine's preStop hook at once, then SIGTERM to it too."""
        self._agent.signal(signal.SIGTERM)
        script = self._cluster.pre_stop.replace(":8000", f":{self._port}")
        subprocess.run([sys.executable, "-c", script], check=True, timeout=sum(GRACE.values()) + 10)
        self._engine.signal(signal.SIGTERM)
        assert self._agent.wait(10) == 0
        assert self._engine.wait(10) == 0


class Router:
    """A router's pod. `ready` is what its readiness probe finds."""

    def __init__(self, cluster: Cluster, version: int | None) -> None:
        config = {
            "listen": "127.0.0.1:0",
            "models": [{"name": ENGINE.model, "tokenizer": str(ENGINE.folder)}],
            "redis": {"url": cluster.redis},
            "timeouts": {"drain_delay_s": GRACE["announceSeconds"], "drain_s": GRACE["drainSeconds"]},
        }
        file = cluster.folder / "router.yaml"
        file.write_text(json.dumps(config))
        self._cluster = cluster
        self._child = cluster.spawn("router", version, "router", "--config", str(file))
        self.address = cluster.ready(self._child)["http"].removeprefix("http://")

    def get(self, path: str) -> tuple[int, Any]:
        """Ask its admin."""
        connection = http.client.HTTPConnection(self.address, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")

    def sees(self, *names: str) -> bool:
        """Whether it is ready, and has these replicas and no other in rotation."""
        told = self.get("/admin/replicas")[1]["replicas"]
        ready = {item["replica"] for item in told if item["state"] == "ready"}
        return self.get("/readyz")[0] == 200 and ready == set(names)

    def join(self, *names: str) -> None:
        """Be among the Service's endpoints once it is ready and knows these replicas."""
        wait_for("the router's fleet", lambda: self.sees(*names), [self._child], 60)
        self._cluster.routers.append(self)

    def leave(self) -> None:
        """SIGTERM; the Service forgets it when its readiness probe fails, while it still takes what comes late."""
        self._child.signal(signal.SIGTERM)
        wait_for("the probe fails", lambda: self.get("/readyz")[0] == 503, [self._child], 5)
        self._cluster.routers.remove(self)
        assert self._child.wait(sum(GRACE.values()) + 10) == 0


class Traffic:
    """Clients that stream one answer after another from whatever router is ready, each by a connection of its own."""

    def __init__(self, cluster: Cluster, clients: int = 4) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self.whole = 0
        self.broken: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, client: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            router = self._cluster.routers[turn % len(self._cluster.routers)]
            try:
                tokens = stream(router.address, f"client {client} says {turn}")
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.broken.append(repr(error))
            else:
                self.whole += 1
                if tokens != TOKENS:
                    self.broken.append(f"{tokens} tokens")


def request(address: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """Send a chat; return the answer, whose body is to be read."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({"model": "tiny", **body}), {"content-type": "application/json"}
    )
    response = connection.getresponse()
    assert response.status == 200, response.read()
    return response


def stream(address: str, text: str) -> int:
    """Stream an answer; return how many tokens it had, by its usage, once it was whole."""
    body = {"messages": [{"role": "user", "content": text}], "stream": True, "ignore_eos": True}
    response = request(address, {**body, "max_tokens": TOKENS, "stream_options": {"include_usage": True}})
    *_, last, done, _ = response.read().decode().split("\n\n")
    assert done == "data: [DONE]", last
    return int(json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"])


def is_warm(router: Router, seed: str) -> bool:
    """Whether a prompt of its own, sent again, is found where it is cached, as the engine then confirms."""
    text = " ".join(f"{seed}{number}" for number in range(300))
    response = request(router.address, {"messages": [{"role": "user", "content": text}], "max_tokens": 1})
    matched = int(response.getheader("x-warmroute-matched-tokens") or 0)
    delivered = json.loads(response.read())["usage"]["prompt_tokens_details"]["cached_tokens"]
    return matched == delivered > 500


@pytest.fixture
def cluster(render: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> Iterator[Cluster]:
    """An empty one, with the chart's preStop hook."""
    pools = [
        manifest
        for manifest in render({"grace": GRACE})
        if manifest["kind"] == "Deployment" and "warmroute/pool" in manifest["metadata"]["labels"]
    ]
    engine = pools[0]["spec"]["template"]["spec"]["containers"][0]
    *_, script = engine["lifecycle"]["preStop"]["exec"]["command"]
    assert script.count(":8000") == 1
    made = Cluster(tmp_path, script)
    yield made
    stop_all(made.children[::-1])


def test_an_update_of_routers_and_pools_cuts_no_stream(cluster: Cluster) -> None:
    """Both orders in one: an older router with an older and a newer agent, then a newer router with both, then all new.

    At each step prompts are found where they are cached, whichever version wrote of it and whichever reads.
    """
    pods = {"p0": Pod(cluster, "p0", 1), "p1": Pod(cluster, "p1", 1)}
    older = Router(cluster, 1)
    older.join("p0", "p1")
    with Traffic(cluster) as traffic:
        # A pool first: the older router reads what the newer agent writes. No surge: GPUs are not to spare.
        pods["p1"].leave()
        pods["p1"] = Pod(cluster, "p1-new", None)
        wait_for("the new pod is seen", lambda: older.sees("p0", "p1-new"), cluster.children[:1], 30)
        for seed in ("a", "b", "c", "d"):
            wait_for("the older router is warm", lambda seed=seed: is_warm(older, seed), cluster.children[:1], 20)
        # Then the routers, with surge: the newer one reads what the older agent writes.
        newer = Router(cluster, None)
        newer.join("p0", "p1-new")
        older.leave()
        for seed in ("e", "f", "g", "h"):
            wait_for("the newer router is warm", lambda seed=seed: is_warm(newer, seed), cluster.children[:1], 20)
        pods["p0"].leave()
        pods["p0"] = Pod(cluster, "p0-new", None)
        wait_for("the pool is new", lambda: newer.sees("p0-new", "p1-new"), cluster.children[:1], 30)
        whole = traffic.whole
        wait_for("all serve", lambda: traffic.whole > whole + 8, cluster.children[:1], 20)
    assert traffic.broken == []
    for item in newer.get("/admin/replicas")[1]["replicas"]:
        assert item["state"] == "ready"
