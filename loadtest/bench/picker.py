"""`make bench-picker`: what it costs to have Envoy ask a picker where each request goes.

Chats of 2 KB at one connection through a real Envoy, without a picker (Envoy balances by itself) and with one that
reads, tokenises, matches and decides; prompts are known, as most are. Then 64 streams with a chunk each 10 ms: the
picker's CPU time for 1,000 chunks, which pass it by. Envoy and picker have one core, engines and load the other.

Exit code 1 when the picker adds over 1.5 ms at p50, or streams cost it more than their heads do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from loadtest.bench import envoy
from loadtest.bench.proxy import CORES, TOKENIZER, Case, Row, await_answer, free_port, measure, process
from loadtest.bench.proxy_fleet import MODEL

CHAT = Case("1 connection, 2 KB", 2_048, 1)
STREAMS = Case("64 streams", 200, 64, stream=True)
LIMIT_US = 1_500.0
LIMIT_MS_A_1000_CHUNKS = 2.0
"""A stream here has 200 chunks: its head's share is what is left where chunks cost nothing."""


def main() -> int:
    """Print the figures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="times each load is measured, for medians (default: 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for so long each time (default: 2)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends, too
    os.sched_setaffinity(0, {CORES[-1]})
    found: dict[tuple[str, str], list[Row]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        command = [sys.executable, "-m", "loadtest.bench.proxy_fleet", "4", "0.01"]
        with process(command, -1, folder / "fleet.log", told=True) as fleet:
            assert fleet.stdout is not None
            ports = json.loads(fleet.stdout.readline())
            command = [sys.executable, "-m", "router.cli", "picker", "--config", str(config(ports, folder))]
            with process(command, 0, folder / "picker.log", told=True) as picker:
                assert picker.stdout is not None
                picker_port = int(json.loads(picker.stdout.readline())["grpc"].rpartition(":")[2])
                for name, port in (("without", None), ("with", picker_port)):
                    at = free_port()
                    with process(proxy(ports, port, at, folder), 0, folder / f"envoy-{name}.log"):
                        await_answer(at)
                        for case in (CHAT, STREAMS):
                            found[name, case.name] = [
                                measure(at, picker.pid, case, args.seconds) for _ in range(args.runs)
                            ]
    without, beside = (statistics.median(row.p50_us for row in found[name, CHAT.name]) for name in ("without", "with"))
    cpu_us = statistics.median(row.cpu_us for row in found["with", CHAT.name])
    chunks_ms = statistics.median(row.cpu_ms_per_1000_chunks for row in found["with", STREAMS.name])
    errors = sum(row.errors for rows in found.values() for row in rows)
    print(f"p50 of a 2 KB chat through Envoy: {without:,.0f} us without a picker, {beside:,.0f} us with one")
    print(f"the picker adds {beside - without:,.0f} us (at most {LIMIT_US:,.0f}) and {cpu_us:,.0f} us of CPU a request")
    print(f"streams cost it {chunks_ms:.2f} ms of CPU per 1,000 chunks, their heads included; errors {errors}")
    return int(beside - without > LIMIT_US or chunks_ms > LIMIT_MS_A_1000_CHUNKS or errors > 0)


def config(ports: list[int], folder: Path) -> Path:
    """Write the picker's configuration."""
    settings = {
        "admin": {"listen": "127.0.0.1:0"},
        "picker": {"listen": "127.0.0.1:0"},
        "models": [{"name": MODEL, "tokenizer": str(TOKENIZER)}],
        "replicas": [{"url": f"http://127.0.0.1:{port}"} for port in ports],
    }
    file = folder / "picker.yaml"
    file.write_text(json.dumps(settings))
    return file


def proxy(ports: list[int], picker_port: int | None, at: int, folder: Path) -> list[str]:
    """Write Envoy's configuration; return how to start it."""
    file = folder / f"envoy-{picker_port}.json"
    file.write_text(json.dumps(envoy.config(picker_port, [f"127.0.0.1:{port}" for port in ports], at)))
    return envoy.command(envoy.program(), file, folder / f"envoy-{picker_port}.admin")


if __name__ == "__main__":
    sys.exit(main())
