"""`make bench-generator`: what one process of the load generators can send, and whether its percentiles are true.

A stub of known delays (stub.py) has the first core, the generator the last one. Streaming requests arrive at a rate
for some seconds; measured are the CPU time of a request, and the median and 99th percentile of TTFT against those of
the delays the stub was told. Both generators: the driver of `make loadtest`, and a process of locust.

Limits: 300 requests/s with less than a core, p50 within 2 ms, p99 within 5%.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtest.bench.stub import delay_s
from loadtest.driver.client import HttpClient, connections
from loadtest.driver.driver import Driver
from loadtest.driver.holding import Sending
from loadtest.report.percentiles import quantile
from loadtest.workloads.callers import Callers
from loadtest.workloads.schedule import Stage
from loadtest.workloads.text import tokenizer_folder
from loadtest.workloads.traffic import Traffic

RATE_PER_S = 300.0
P50_WITHIN_S = 0.002
P99_WITHIN = 0.05
WARM_UP_S = 2.0
LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"


@dataclass(frozen=True, slots=True)
class Figures:
    """How a generator did.

    Attributes:
        sends: Measured requests.
        failed: Of them.
        cpu_share: Of the core.
        p50_s, p99_s: TTFT, as it measured it.
        true_p50_s, true_p99_s: Of the stub's delays for the same requests.
        was_bottleneck: What it says of itself.
    """

    name: str
    rate_per_s: float
    sends: int
    failed: int
    cpu_share: float
    p50_s: float
    p99_s: float
    true_p50_s: float
    true_p99_s: float
    was_bottleneck: bool

    def line(self) -> str:
        """Return it in a line."""
        return (
            f"{self.name:<9} {self.rate_per_s:5.0f}/s, {self.sends:6,} requests, {self.failed} failed, "
            f"{self.cpu_share:5.0%} of a core ({self.cpu_share / self.rate_per_s * 1000:.2f} ms a request), "
            f"TTFT p50 {self.p50_s * 1000:6.1f} ms (true {self.true_p50_s * 1000:6.1f}), "
            f"p99 {self.p99_s * 1000:6.1f} ms (true {self.true_p99_s * 1000:6.1f})"
            + (", says it was the bottleneck" if self.was_bottleneck else "")
        )

    def failures(self) -> list[str]:
        """Return which limits were missed."""
        return [
            f"{self.name}: {what}"
            for what, missed in (
                (f"{self.failed} requests failed", self.failed > 0),
                (f"{self.cpu_share:.0%} of a core at {self.rate_per_s:.0f}/s", self.cpu_share >= 1.0),
                ("p50 is not within 2 ms", abs(self.p50_s - self.true_p50_s) > P50_WITHIN_S),
                ("p99 is not within 5%", abs(self.p99_s - self.true_p99_s) > P99_WITHIN * self.true_p99_s),
                ("it says that it was the bottleneck", self.was_bottleneck),
            )
            if missed
        ]


def traffic(rate_per_s: float, seconds: float) -> Traffic:
    """Return prompts of 200 to 700 tokens that share nothing, with answers of 16 to 40."""
    return Traffic("no-reuse", own_stages=(Stage(rate_per_s, seconds + WARM_UP_S),))


def drive(url: str, rate_per_s: float, seconds: float) -> Figures:
    """Measure the driver."""
    sent = traffic(rate_per_s, seconds)

    async def main() -> Driver:
        async with connections(30) as session:
            driver = Driver(HttpClient(session, url), Sending(Callers(("m",)), warm_up_s=WARM_UP_S), sent.stages)
            await driver.run(sent.lanes(tokenizer_folder()))
            return driver

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        driver = runner.run(main())
    generator = driver.generator()
    rows = [(each.ttft_s, each.output_tokens) for each in driver.measured]
    return figures("driver", rate_per_s, rows, generator.cpu_share, generator.was_bottleneck)


def locust(url: str, rate_per_s: float, seconds: float, *more: str) -> Figures:
    """Measure a process of locust."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--host", url]
        command += ["--workload", "no-reuse", "--stages", f"{rate_per_s:g}x{seconds + WARM_UP_S:g}"]
        command += ["--warm-up", f"{WARM_UP_S:g}", "--report", folder, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            report = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SystemExit(f"locust made no report:\n{done.stderr[-2_000:]}") from None
        lines = (Path(folder) / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    generator = report["runs"][0]["generator"]
    rows = [(each["ttft_s"], each["output_tokens"]) for each in records]
    return figures("locust", rate_per_s, rows, generator["cpu_share"], generator["was_bottleneck"])


def figures(
    name: str, rate_per_s: float, rows: Sequence[tuple[float | None, int | None]], cpu_share: float, bottleneck: bool
) -> Figures:
    """Return what (TTFT, answer's tokens) of all requests come to."""
    good = [(ttft_s, tokens) for ttft_s, tokens in rows if ttft_s is not None and tokens is not None]
    measured, true = [ttft_s for ttft_s, _ in good], [delay_s(tokens) for _, tokens in good]
    (p50_s, p99_s), (true_p50_s, true_p99_s) = (
        [quantile(values, share) if values else 0.0 for share in (0.5, 0.99)] for values in (measured, true)
    )
    failed = len(rows) - len(good)
    return Figures(name, rate_per_s, len(rows), failed, cpu_share, p50_s, p99_s, true_p50_s, true_p99_s, bottleneck)


@contextmanager
def stub() -> Iterator[str]:
    """Start the stub on the first core; yield its URL."""
    process = subprocess.Popen([sys.executable, "-m", "loadtest.bench.stub"], stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["http"])
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Measure; return 1 when a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="for so long (default: %(default)s)")
    parser.add_argument("--only", choices=("driver", "locust"), help="one of them (default: both)")
    args = parser.parse_args()
    missed = []
    with stub() as url:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        for name, measure in (("driver", drive), ("locust", locust)):
            if args.only in (None, name):
                found = measure(url, args.rate, args.seconds)
                print(found.line(), flush=True)
                missed += found.failures()
    print("\n".join(missed) or "within all limits")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
