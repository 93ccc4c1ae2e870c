"""Several processes serve one address: nobody who asks the router can tell, whatever becomes of one of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

Eventually = Callable[..., Awaitable[Any]]
BODY = {"model": "tiny", "prompt": "hello"}


class Engine:
    """An engine that answers at once, or when it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.running = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer({"data": [{"id": "tiny", "object": "model", "root": "tiny"}]})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                with outer._lock:
                    outer.running += 1
                outer.go.wait(60)
                with outer._lock:
                    outer.running -= 1
                self._answer({"choices": []})

            def _answer(self, data: object) -> None:
                body = json.dumps(data).encode()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                with contextlib.suppress(OSError):
                    self.wfile.write(head.encode() + body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self.go.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Two of them."""
    made = [Engine(), Engine()]
    yield made
    for each in made:
        each.stop()


@pytest.fixture
def two(router_process: Any, engines: list[Engine]) -> Callable[..., Any]:
    """`two(key=...)`: a router of two workers in front of the engines."""

    def make(**changes: Any) -> Any:
        replicas = [{"url": each.url} for each in engines]
        return router_process(**{"workers": 2, "replicas": replicas, **changes})

    return make


def pids(router: Any) -> list[int]:
    """The workers' processes, in no order."""
    text = Path(f"/proc/{router.process.pid}/task/{router.process.pid}/children").read_text()
    return [int(pid) for pid in text.split() if b"router.workers.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def begun(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that says nothing to us."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def folders(router: Any) -> int:
    """How many folders supervisors have made."""
    return len(list(Path(router.environ["TMPDIR"]).glob("warmroute-workers-*")))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def spread(router: Any, eventually: Any = None, requests: int = 0) -> list[str]:
    """Send requests on connections of their own until both workers took some; return their ids."""
    ids: list[str] = []
    for number in range(requests or 200):
        status, headers, answer = router.client.send("POST", "/v1/completions", BODY, x_request_id=f"id-{number}")
        assert status == 200, answer
        ids.append(headers["x-request-id"])
        if not requests and number >= 20 and len(workers_of(router)) == 2:
            break
    return ids


def workers_of(router: Any) -> set[int]:
    """Which workers made decisions."""
    _, _, answer = router.admin.send("GET", "/admin/decisions?limit=1000")
    return {item["worker"] for item in answer["decisions"]}


def test_metrics_and_decisions_are_all_workers_together(two: Any) -> None:
    """Counters and histograms add up; a decision is found whichever worker made it."""
    router = two()
    ids = spread(router)
    assert workers_of(router) == {0, 1}
    counted = 'warmroute_requests_total{endpoint="/v1/completions",model="tiny",status="2xx"}'
    assert router.metric(counted) == len(ids)
    assert router.metric('warmroute_request_seconds_count{model="tiny"}') == len(ids)
    assert router.metric('warmroute_request_seconds_bucket{le="+Inf",model="tiny"}') == len(ids)
    assert router.metric("warmroute_in_flight_requests") == 0
    assert router.metric('warmroute_workers{state="serving"}') == 2
    assert router.metric('warmroute_replicas{state="ready"}') == 2
    for request_id in ids:
        status, _, decision = router.admin.send("GET", f"/admin/decisions/{request_id}")
        assert (status, decision["request_id"]) == (200, request_id)
    _, _, listed = router.admin.send("GET", "/admin/decisions?limit=1000")
    assert {item["request_id"] for item in listed["decisions"]} == set(ids)
    times = [item["at"] for item in listed["decisions"]]
    assert times == sorted(times, reverse=True)
    _, _, ledger = router.admin.send("GET", "/admin/ledger")
    assert ledger["total"]["requests"] == len(ids)
    assert sum(item["router"]["good"] for item in ledger["replicas"] if item["router"]) == len(ids)
    assert "sketch" not in ledger["accounts"][0]
    assert router.admin.send("GET", "/admin/prefixes?limit=3")[0] == 200
    slowest = router.admin.send("GET", "/admin/decisions?limit=5&order=slowest")[2]["decisions"]
    assert len(slowest) == 5
    assert slowest[0]["outcome"]["total_s"] >= slowest[4]["outcome"]["total_s"]
    assert router.admin.send("GET", "/admin/decisions/none")[0] == 404
    assert router.admin.send("POST", "/admin/explain", BODY)[2]["winner"]


async def test_the_live_view_is_of_all_workers_together(two: Any, eventually: Eventually) -> None:
    """The dashboard, its figures, decisions of both, and its stream, through whichever worker is asked."""
    router = two()
    ids = spread(router)

    def overview() -> dict[str, Any]:
        found: dict[str, Any] = router.admin.send("GET", "/admin/overview")[2]
        return found

    await eventually(lambda: overview()["totals"]["requests"] == len(ids))
    seen = overview()
    assert (seen["workers"], seen["ready"]) == (2, True)
    assert [row["state"] for row in seen["replicas"]] == ["ready", "ready"]
    assert sum(row["window"]["requests"] for row in seen["replicas"]) == len(ids)
    assert {row["worker"] for row in seen["decisions"]["latest"]} == {0, 1}
    status, headers, page = router.admin.send("GET", "/admin/")
    assert (status, headers["content-type"], b"Warmroute" in page) == (200, "text/html; charset=utf-8", True)
    connection = router.admin.connection()
    connection.request("GET", "/admin/events")
    stream, heard = connection.getresponse(), b""
    while b"event: overview\ndata: {" not in heard:
        heard += stream.read1()
    connection.close()
    assert b"event: history" in heard
    old = pids(router)
    os.kill(old[0], signal.SIGKILL)
    await eventually(lambda: len(set(pids(router)) - set(old)) == 1 and overview()["workers"] == 2, 30)
    assert overview()["totals"]["requests"] == len(ids), "what a worker had counted stays"


async def test_what_is_in_flight_counts_for_every_worker(
    two: Any, engines: list[Engine], eventually: Eventually, workers_in: Any
) -> None:
    """Requests that no worker sees alone are spread evenly by all of them: as if there were one."""
    router = two(placement={"policy": "least-loaded"})
    workers = workers_in(Path(router.environ["TMPDIR"]))
    assert len(workers) == 2

    def known(worker: Any) -> int:
        candidates = worker.send("POST", "/admin/explain", BODY)[2]["candidates"]
        return sum(candidate["running"] for candidate in candidates)

    for engine in engines:
        engine.go.clear()
    threads = []
    for sent in range(1, 13):
        thread = threading.Thread(target=router.client.send, args=("POST", "/v1/completions", BODY))
        thread.start()
        threads.append(thread)
        await eventually(lambda sent=sent: sum(engine.running for engine in engines) == sent)
        await eventually(lambda sent=sent: [known(worker) for worker in workers] == [sent, sent])
    assert [engine.running for engine in engines] == [6, 6]
    _, _, answer = router.admin.send("GET", "/admin/replicas")
    assert [replica["units"][0]["requests"] for replica in answer["replicas"]] == [6, 6]
    assert router.metric("warmroute_in_flight_requests") == 12
    assert len(workers_of(router)) == 2
    for engine in engines:
        engine.go.set()
    for thread in threads:
        thread.join()


async def test_a_worker_that_dies_is_replaced_and_no_connection_refused(two: Any, eventually: Eventually) -> None:
    """Connections that come meanwhile are served by the other one; no counter falls."""
    router = two()
    spread(router)
    counted = 'warmroute_requests_total{endpoint="/v1/completions",model="tiny",status="2xx"}'
    before = router.metric(counted)
    old = pids(router)
    os.kill(old[0], signal.SIGKILL)
    served = 0
    while not served or router.metric("warmroute_worker_deaths_total") < 1 or len(set(pids(router)) - set(old)) < 1:
        assert router.client.send("POST", "/v1/completions", BODY)[0] == 200
        served += 1
    await eventually(lambda: router.metric('warmroute_workers{state="serving"}') == 2, 30)
    assert router.metric(counted) == before + served
    assert router.admin.send("GET", "/readyz")[0] == 200


async def test_no_worker_outlives_its_supervisor(two: Any, eventually: Eventually) -> None:
    """Not even one that was killed without a word; and what it left on disk goes with the next start."""
    router = two()
    workers = pids(router)
    assert len(workers) == 2
    assert folders(router) == 1
    router.process.kill()
    router.process.wait()
    await eventually(lambda: not any(is_alive(pid) for pid in workers))
    another = two()
    assert folders(another) == 1
    assert another.stop() == 0
    assert folders(another) == 0


async def test_what_runs_is_finished_before_all_end(two: Any, engines: list[Engine], eventually: Eventually) -> None:
    """SIGTERM: not ready at once, running requests of every worker are answered, then exit code 0."""
    router = two(timeouts={"drain_delay_s": 1, "drain_s": 30}, admin={"listen": "127.0.0.1:0"})
    for engine in engines:
        engine.go.clear()
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(router.client.send("POST", "/v1/completions", BODY)[0])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    await eventually(lambda: sum(engine.running for engine in engines) == 8)
    router.process.terminate()
    await eventually(lambda: router.admin.send("GET", "/readyz")[0] == 503)
    assert router.admin.send("GET", "/healthz")[0] == 200
    assert router.client.send("GET", "/v1/models")[0] == 200
    for engine in engines:
        engine.go.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 8
    assert router.process.wait(20) == 0


async def test_a_change_reaches_all_workers_and_those_that_come_later(two: Any, eventually: Eventually) -> None:
    """Also one that replaces a dead worker while the file is broken: it starts from the last valid one."""
    router = two()
    router.write({**router.least, "paths": ["/v1/completions"]})
    await eventually(lambda: router.config()["reload"]["result"] == "applied")
    assert {router.client.send("GET", "/v1/models")[0] for _ in range(12)} == {404}
    assert router.metric('warmroute_config_reloads_total{result="applied"}') == 1
    router.write({**router.least, "placement": {"policy": "best"}})
    await eventually(lambda: router.config()["reload"]["result"] == "failed")
    assert router.config()["reload"]["problems"]
    os.kill(pids(router)[0], signal.SIGKILL)
    await eventually(lambda: router.metric("warmroute_worker_deaths_total") == 1)
    await eventually(lambda: router.metric('warmroute_workers{state="serving"}') == 2, 30)
    assert {router.client.send("GET", "/v1/models")[0] for _ in range(12)} == {404}


async def test_a_start_that_is_broken_off_ends_at_once(
    tmp_path: Path, golden: Path, eventually: Eventually, engines: list[Engine]
) -> None:
    """SIGTERM before anybody is ready: exit code 0, nothing left."""
    models = [{"name": "tiny", "tokenizer": str(golden / "tokenizer")}]
    config = {"listen": "127.0.0.1:0", "workers": 2, "models": models, "replicas": [{"url": engines[0].url}]}
    (tmp_path / "router.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "router.cli", "router", "--config", str(tmp_path / "router.yaml")]
    with begun(command) as process:
        router = SimpleNamespace(process=process)
        workers = await eventually(lambda: len(found := pids(router)) == 2 and found, 60)
        process.terminate()
        assert process.wait(20) == 0
    assert not any(is_alive(pid) for pid in workers)


def test_what_workers_can_not_use_is_said_and_ends_the_start(router_process: Any) -> None:
    """A tokenizer that is not there: exit code 2 with the problem, said once."""
    with pytest.raises(AssertionError) as said:
        router_process(workers=3, models=[{"name": "tiny", "tokenizer": "/nowhere"}])
    assert str(said.value).count("models.0.tokenizer") == 1


def test_a_port_in_use_is_said(router_process: Any) -> None:
    """Also where it is in use by sockets that would share it."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AssertionError, match="already in use"):
            router_process(workers=2, listen=f"127.0.0.1:{taken.getsockname()[1]}")
