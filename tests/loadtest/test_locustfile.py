"""Locust, headless: against a router and two simulated engines, and against a stub of known delay."""

from __future__ import annotations

import csv
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.stub import delay_s
from router.tools.local_fleet import EngineOptions, LocalFleet
from router.tools.processes import Child, stop_all, wait_for

LOCUSTFILE = Path(__file__).parents[2] / "loadtest" / "locustfile.py"
LOCUST = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]


@pytest.mark.slow
def test_locust_reports_ttft_and_hit_rate(tmp_path: Path) -> None:
    """A few seconds of mixed traffic give rows for whole answers, TTFT, ITL, hits and replicas, and a hit rate."""
    options = EngineOptions(num_blocks=2_000, prefill_tokens_per_s=80_000, decode_step_s=0.005)
    with LocalFleet(options, replicas=2, agents=False) as fleet:
        run = subprocess.run(
            [*LOCUST, "--host", fleet.router.http, "-u", "6", "-r", "50", "-t", "5s", "--csv", str(tmp_path / "stats")],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert run.returncode == 0, run.stderr
    with (tmp_path / "stats_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    assert {kind for kind, _ in rows} >= {"POST", "TTFT", "ITL", "HIT%", "MATCH%", "REPLICA"}
    assert all(row["Failure Count"] == "0" for row in rows.values())
    assert {name for kind, name in rows if kind == "REPLICA"} == {"r0", "r1"}
    # The engine takes 5 ms a token; a first piece that is read late shortens the mean of the gaps after it.
    assert float(rows["ITL", "chat"]["Average Response Time"]) > 4
    ttft, whole = (float(rows[kind, "chat"]["Average Response Time"]) for kind in ("TTFT", "POST"))
    assert 0 < ttft < whole  # an answer has at least 24 tokens of 5 ms
    told = re.search(r"hit rate: ([\d.]+)% \(([\d,]+) cached of ([\d,]+) prompt tokens", run.stdout)
    assert told is not None, run.stdout
    rate, cached, prompt = (float(part.replace(",", "")) for part in told.groups())
    assert 0 < rate < 100
    assert rate == pytest.approx(100 * cached / prompt, abs=0.05)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[str]:
    child = Child("stub", [sys.executable, "-m", "loadtest.bench.stub"], tmp_path)
    try:
        yield wait_for("the stub", child.ready_line, [child], 30)["http"]
    finally:
        stop_all([child])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_workers_share_arrivals_and_their_master_makes_the_report(stub: str, tmp_path: Path) -> None:
    """Two workers send what one process does, at the same times, each request once; the test ends by itself.

    Sessions are told apart by tenant and model, delays are those of the stub, and what came in the warm-up is left out.
    """
    keys = tmp_path / "keys"
    keys.write_text("key-a\nkey-b\n")
    more = ["--stages", "20x1,20-40x1", "--workload", "no-reuse", "--warm-up", "0.5", "--api-keys", str(keys)]
    more += ["--adapters", "a0", "--host", stub]
    port = str(free_port())
    master = ["--master", "--master-bind-port", port, "--expect-workers", "2"]
    commands = [
        [*LOCUST, *more, "--report", str(tmp_path / "one")],
        [*LOCUST, *more, "--report", str(tmp_path / "two"), *master],
        *([*LOCUST, "--worker", "--master-port", port] for _ in range(2)),
    ]
    processes: list[subprocess.Popen[str]] = []
    try:
        processes.extend(subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands)
        for process in processes:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    one, two = (
        sorted(
            (each["intended_s"], each["session"], each["tenant"], each["model"]) for each in records(tmp_path / name)
        )
        for name in ("one", "two")
    )
    assert one == two
    assert len(one) > 20
    assert min(one)[0] >= 0.5
    assert {each[2:] for each in one} == {(tenant, model) for tenant in (0, 1) for model in ("tiny", "a0")}
    for each in records(tmp_path / "two"):
        assert (each["cause"], each["replica"], each["matched_tokens"], each["prompt_tokens"]) == (None, "stub", 16, 64)
        assert each["ttft_s"] >= delay_s(each["output_tokens"]) - 0.001
    told = json.loads((tmp_path / "two" / "report.json").read_text())
    (run,) = told["runs"]
    assert run["measures"]["hit_rate"]["value"] == 0.25
    assert run["generator"]["sends"] == len(one)
    assert set(run["by_stage"]) == {"0", "1"}


@pytest.mark.slow
def test_a_closed_loop_ends_with_its_sessions_and_counts_failures_by_cause(stub: str, tmp_path: Path) -> None:
    """Three users hold 12 sessions; then the same where nobody listens: exit code 1, and the cause is told."""
    closed = [*LOCUST, "-u", "3", "-r", "9", "--sessions", "12", "--workload", "no-reuse", "--report", str(tmp_path)]
    done = subprocess.run([*closed, "--host", stub], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(each["session"] for each in records(tmp_path)) == sorted(f"single-{n}" for n in range(12))
    failed = subprocess.run([*closed, "--host", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1
    assert {each["cause"] for each in records(tmp_path)} == {"not-connected"}
    assert "not-connected" in failed.stdout + failed.stderr
