"""`make bench-proxy`: what the data plane costs, beside no proxy and, where it is installed, sglang-router.

The router has one core (the first), four engines that answer at once and the load have another. Policy `cost`, metrics
and access log are on; each of the 256 prompts is sent once before it is measured, so it is known (`cold`: each is new).

- requests/s with 64 connections, chats of 200 bytes and 32 KB. What Python's load reaches without a proxy is its own
  limit, not the engines'; the router's CPU time for a request does not depend on it.
- latency p50 with one connection, less that without a proxy.
- 256 streams with a chunk each 10 ms: CPU time for 1,000 chunks, the gap between chunks at p99.
- where the time of a request goes (of a router whose stages are timed, which costs some itself).

With `--hold` instead: memory after 100,000 distinct prompts of 8 KB, with 10,000 idle connections, and with 2,000
streams. With `--observability`: what decisions, ledger, metrics and access log cost. For sglang-router:
`pip install sglang-router`, and point `--sglang` at the command if it is not on the path.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest.bench.proxy_fleet import MODEL
from loadtest.bench.proxy_hold import hold
from loadtest.bench.proxy_load import MARK, Heard, Requests, chat, run
from loadtest.bench.proxy_notes import compare, folder_of

TOKENIZER = Path(__file__).parents[1] / "workloads/tokenizer"
PROMPTS = 256
READY_S = 60.0
CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Case:
    """One load."""

    name: str
    size_bytes: int
    connections: int
    stream: bool = False
    known: bool = True


CASES = (
    Case("64 connections, 200 B", 200, 64),
    Case("64 connections, 32 KB", 32_768, 64),
    Case("8 connections, 32 KB, cold", 32_768, 8, known=False),
    Case("1 connection, 200 B", 200, 1),
    Case("1 connection, 32 KB", 32_768, 1),
    Case("256 streams", 200, 256, stream=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one load gave; CPU time is the proxy's."""

    per_s: float
    p50_us: float
    cpu_us: float
    cpu_ms_per_1000_chunks: float
    gap_p99_ms: float
    errors: int


@contextmanager
def process(command: Sequence[str], core: int, log: Path, *, told: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a command on a core until the block ends.

    Args:
        told: Its standard output is read here; else it goes to the log.
    """
    with log.open("w") as errors:
        output = subprocess.PIPE if told else errors
        started = subprocess.Popen([*command], stdout=output, stderr=errors, text=True, start_new_session=True)
    os.sched_setaffinity(started.pid, {CORES[core % len(CORES)]})
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def cpu_s(pid: int | None) -> float:
    """Return the CPU time of a process so far."""
    if pid is None:
        return 0.0
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def free_port() -> int:
    """Return a port that is free now, for a command that takes none by itself."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def await_answer(port: int) -> None:
    """Wait until chats are answered."""
    body = chat(200, stream=False, model=MODEL).replace(MARK, b"0" * 12)
    until_s = time.monotonic() + READY_S
    while True:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            link.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            if link.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            link.close()
        if time.monotonic() > until_s:
            raise TimeoutError("it does not answer")
        time.sleep(0.2)


def measure(port: int, pid: int | None, case: Case, seconds: float) -> Row:
    """Put one load on a port."""
    body = chat(case.size_bytes, stream=case.stream, model=MODEL)
    distinct = PROMPTS if case.known else 0
    if case.known and not case.stream:
        uvloop.run(run(port, Requests(body, distinct, PROMPTS), 8, 0, None))
    begun: list[tuple[float, float]] = []

    async def measured() -> Heard:
        warm_s = 2.5 if case.stream else 0.5
        asyncio.get_running_loop().call_later(warm_s, lambda: begun.append((cpu_s(pid), time.monotonic())))
        first = 0 if case.known else time.monotonic_ns() // 10**6
        return await run(port, Requests(body, distinct, first=first), case.connections, warm_s, seconds)

    heard = uvloop.run(measured())
    spent_s, elapsed_s = cpu_s(pid) - begun[0][0], time.monotonic() - begun[0][1]
    gaps = sorted(heard.gaps_s)
    return Row(
        heard.done / elapsed_s,
        statistics.median(heard.latencies_s) * 1e6 if heard.latencies_s else 0.0,
        spent_s * 1e6 / heard.done if heard.done else 0.0,
        spent_s * 1e6 / heard.chunks if heard.chunks else 0.0,
        gaps[int(len(gaps) * 0.99)] * 1e3 if gaps else 0.0,
        heard.errors,
    )


def show(name: str, case: Case, rows: Sequence[Row]) -> None:
    """Print the medians."""

    def median(value: Callable[[Row], float]) -> float:
        return statistics.median(map(value, rows))

    if case.stream:
        figures = f"{median(lambda row: row.cpu_ms_per_1000_chunks):8.1f} ms CPU per 1,000 chunks   gap p99 "
        figures += f"{median(lambda row: row.gap_p99_ms):6.1f} ms"
    else:
        figures = f"{median(lambda row: row.per_s):8,.0f} requests/s   p50 {median(lambda row: row.p50_us):9,.0f} us"
        figures += f"   CPU {median(lambda row: row.cpu_us):7,.0f} us a request"
    print(f"{name:<14}{case.name:<28}{figures}   errors {sum(row.errors for row in rows)}", flush=True)


def routers(ports: Sequence[int], sglang: str | None, folder: Path) -> Iterator[tuple[str, list[str], int]]:
    """Yield what is compared: a name, the command, its port."""
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    port = free_port()
    yield "warmroute", [sys.executable, "-m", "router.cli", "router", "--config", str(config(urls, port, folder))], port
    if sglang is not None:
        port = free_port()
        own = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        yield "sglang-router", [sglang, "launch", *own, "--policy", "cache_aware", "--worker-urls", *urls], port


def config(urls: Sequence[str], port: int, folder: Path) -> Path:
    """Write the router's configuration."""
    settings = {
        "listen": f"127.0.0.1:{port}",
        "models": [{"name": MODEL, "tokenizer": str(TOKENIZER)}],
        "replicas": [{"url": url} for url in urls],
        "limits": {"connections": 20_000},
    }
    file = folder / "router.yaml"
    file.write_text(json.dumps(settings))
    return file


def started(stack: ExitStack, name: str, command: Sequence[str], ports: Sequence[int], folder: Path) -> tuple[int, int]:
    """Start a router by a command; return its port and process id."""
    port, urls = free_port(), [f"http://127.0.0.1:{each}" for each in ports]
    file = config(urls, port, folder_of(folder, name))
    router = stack.enter_context(process([*command, "router", "--config", str(file)], 0, folder / f"{name}.log"))
    await_answer(port)
    return port, router.pid


def stages(ports: Sequence[int], case: Case, seconds: float, folder: Path) -> None:
    """Print where a request's time goes, in plain Python: methods of compiled classes can't be timed one by one."""
    port, file = free_port(), folder / "stages.json"
    urls = [f"http://127.0.0.1:{each}" for each in ports]
    command = ["env", "WARMROUTE_NATIVE=no", sys.executable, "-m", "loadtest.bench.proxy_stages", str(file)]
    command += ["router", "--config"]
    with process([*command, str(config(urls, port, folder))], 0, folder / "stages.log") as staged:
        await_answer(port)
        measure(port, None, case, 0.2)
        staged.send_signal(signal.SIGUSR1)
        row = measure(port, staged.pid, case, seconds)
        staged.send_signal(signal.SIGUSR2)
        time.sleep(1)
    counted = json.loads(file.read_text())
    spent = {**counted["stages_s"], "kernel, event loop and what is left": 0.0}
    spent["kernel, event loop and what is left"] = counted["cpu_s"] - sum(spent.values())
    print(f"\n{case.name}: {row.cpu_us:.0f} us of CPU a request in plain Python with its stages timed, of which")
    for stage, stage_s in spent.items():
        print(f"  {stage:<50}{stage_s / counted['cpu_s']:6.0%}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="times each load is measured, for medians (default: 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for so long each time (default: 2)")
    parser.add_argument("--sglang", default=shutil.which("sglang-router"), help="its command (default: as found)")
    parser.add_argument("--hold", action="store_true", help="measure memory instead, for some minutes")
    parser.add_argument(
        "--observability", action="store_true", help="measure instead what taking note costs, against a limit of 8%%"
    )
    parser.add_argument("--case", default="", help="only loads whose name holds this, and no stages (default: all)")
    parser.add_argument("--streams-s", type=float, default=60.0, help="with --hold: how long streams run (default: 60)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends, too
    os.sched_setaffinity(0, {CORES[-1]})
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        # 2,000 streams at a hundred chunks a second each would be a measure of what one core can pass on.
        every_s = "0.1" if args.hold else "0.01"
        command = [sys.executable, "-m", "loadtest.bench.proxy_fleet", "4", every_s]
        with process(command, -1, folder / "fleet.log", told=True) as fleet:
            assert fleet.stdout is not None
            ports = json.loads(fleet.stdout.readline())
            compared: list[tuple[str, list[str], int]] = [*routers(ports, args.sglang, folder)]
            if args.hold:
                _, command, port = compared[0]
                with process(command, 0, folder / "router.log") as router:
                    await_answer(port)
                    hold(port, lambda: rss_mb(router.pid), args.streams_s)
                return
            if args.observability:
                held = compare(
                    CASES[:2],
                    max(args.runs, 7),
                    lambda stack, name, command: started(stack, name, command, ports, folder),
                    lambda port, pid, case: measure(port, pid, case, args.seconds),
                )
                sys.exit(0 if held else 1)
            cases = [case for case in CASES if args.case in case.name]
            for case in cases:
                show("no proxy", case, [measure(ports[0], None, case, args.seconds) for _ in range(args.runs)])
            with ExitStack() as stack:
                running: list[tuple[str, int, int]] = []
                for name, command, port in compared:
                    proxy = stack.enter_context(process(command, 0, folder / f"{name}.log"))
                    await_answer(port)
                    running.append((name, port, proxy.pid))
                for case in cases:
                    # In turn, so that what else the machine does meets them alike.
                    rounds = [
                        [measure(port, pid, case, args.seconds) for _, port, pid in running] for _ in range(args.runs)
                    ]
                    for (name, _, _), rows in zip(running, zip(*rounds, strict=True), strict=True):
                        show(name, case, rows)
                for name, _, pid in running:
                    print(f"{name:<14}{rss_mb(pid):.0f} MB", flush=True)
            for case in [] if args.case else CASES[:2]:
                stages(ports, case, args.seconds, folder)


if __name__ == "__main__":
    main()
