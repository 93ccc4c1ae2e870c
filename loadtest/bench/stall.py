"""`make bench-stall`: does the router go on while long prompts come in? Health checks meanwhile, from the outside.

A real router; behind it a server that answers each completion at once, so that the cores are the router's. A burst of
prompts of fresh tokens comes in at once, from a process of its own; another one asks `/healthz` all the time, as a
kubelet does (a connection each), and takes the time from connecting to the whole answer. Printed are the percentiles
while the burst is under way, those of an idle router before, and what became of the prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.workloads.text import TextMaker, load_tokenizer, tokenizer_folder

MODEL = "tiny"
ANSWER = json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}).encode()
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL}]}).encode()
PROBE_EVERY_S = 0.002
LIMIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Stall:
    """Figures of one run: seconds, and prompts by what the router made of them."""

    idle_p99_s: float
    p50_s: float
    p99_s: float
    worst_s: float
    probes: int
    burst_s: float
    understood: int
    late: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench-stall", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=16, help="prompts that come in at once (default: 16)")
    parser.add_argument("--tokens", type=int, default=100_000, help="fresh tokens of each (default: 100000)")
    parser.add_argument("--deadline-ms", type=int, default=None, help="limits.tokenize_deadline_ms (default: its own)")
    parser.add_argument("--json", action="store_true", help="one line of JSON (default: text)")
    args = parser.parse_args(arguments)
    found = asyncio.run(measure(args.prompts, args.tokens, args.deadline_ms))
    if args.json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{args.prompts} prompts of {args.tokens:,} fresh tokens at once: all answered after {found.burst_s:.2f} s"
        )
        print(f"  tokenised in time {found.understood}, placed without {found.late}")
        print(
            f"  /healthz meanwhile ({found.probes} times): p50 {found.p50_s * 1e3:.1f} ms, p99 {found.p99_s * 1e3:.1f} "
            f"ms, worst {found.worst_s * 1e3:.1f} ms; idle p99 {found.idle_p99_s * 1e3:.1f} ms"
        )
    return int(found.p99_s > LIMIT_S)


async def measure(prompts: int, tokens: int, deadline_ms: int | None = None) -> Stall:
    """Run router and burst; return the figures."""
    engine = await asyncio.start_server(_answer, "127.0.0.1", 0)
    port = engine.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="warmroute-") as name:
        folder = Path(name)
        bodies = _write_bodies(folder, prompts, tokens)
        config: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "models": [{"name": MODEL, "tokenizer": str(tokenizer_folder())}],
            "replicas": [{"url": f"http://127.0.0.1:{port}"}],
            "log": {"access": False},
        }
        if deadline_ms is not None:
            config["limits"] = {"tokenize_deadline_ms": deadline_ms}
        (folder / "router.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, "-m", "router.cli", "router", "--config", str(folder / "router.yaml")]
        router = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert router.stdout is not None
            url = json.loads(await router.stdout.readline())["http"]
            return await _measure(url, bodies)
        finally:
            router.send_signal(signal.SIGTERM)
            await router.wait()
            engine.close()


async def _measure(url: str, bodies: list[Path]) -> Stall:
    idle = await _probed(url, asyncio.sleep(1.0))
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from loadtest.bench.stall import send; send()", url, *map(str, bodies)
    )
    begun_s = time.perf_counter()
    busy = await _probed(url, sender.wait())
    burst_s = time.perf_counter() - begun_s
    late = _late(_get(url, "/metrics"))
    p50_s, p99_s = (busy[min(len(busy) - 1, int(len(busy) * share))] for share in (0.5, 0.99))
    return Stall(idle[int(len(idle) * 0.99)], p50_s, p99_s, busy[-1], len(busy), burst_s, len(bodies) - late, late)


async def _probed(url: str, until: Any) -> list[float]:
    """Ask for health until something ends; return the answers' times, sorted."""
    ended = asyncio.ensure_future(until)
    host, port = url.removeprefix("http://").split(":")
    times: list[float] = []
    while not ended.done():
        begun_s = time.perf_counter()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: router\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        times.append(time.perf_counter() - begun_s)
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"/healthz answered {answer[:100]!r}")
        await asyncio.sleep(PROBE_EVERY_S)
    return sorted(times)


def send() -> None:
    """As a process of its own: send every body named on the command line at once, and wait for all answers."""
    url, *paths = sys.argv[1:]
    asyncio.run(_send_all(url, [Path(path).read_bytes() for path in paths]))


async def _send_all(url: str, bodies: list[bytes]) -> None:
    host, port = url.removeprefix("http://").split(":")

    async def one(body: bytes) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: router\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        if b" 200 " not in answer[:20]:
            raise RuntimeError(f"not answered: {answer[:200]!r}")

    await asyncio.gather(*map(one, bodies))


def _write_bodies(folder: Path, prompts: int, tokens: int) -> list[Path]:
    rng = random.Random(11)
    maker = TextMaker(load_tokenizer(tokenizer_folder()))
    paths = []
    for number in range(prompts):
        path = folder / f"{number}.json"
        path.write_text(json.dumps({"model": MODEL, "prompt": maker.make(tokens, rng), "max_tokens": 1}))
        paths.append(path)
    return paths


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as the least of engines: its models, its health, and an empty completion."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"content-length: " in head:
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            body = MODELS if b"/v1/models" in head else ANSWER if head.startswith(b"post") else b""
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _get(url: str, path: str) -> str:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def _late(metrics: str) -> int:
    lines = [line for line in metrics.splitlines() if line.startswith("warmroute_not_understood_total")]
    return sum(int(float(line.split()[-1])) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
