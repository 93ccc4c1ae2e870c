"""Locust, headless, against a router and two simulated engines."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet

LOCUSTFILE = Path(__file__).parents[2] / "loadtest" / "locustfile.py"


@pytest.mark.slow
def test_locust_reports_ttft_and_hit_rate(tmp_path: Path) -> None:
    """A few seconds of mixed traffic give rows for whole answers, TTFT, ITL, hits and replicas, and a hit rate."""
    options = EngineOptions(num_blocks=2_000, prefill_tokens_per_s=80_000, decode_step_s=0.005)
    with LocalFleet(options, replicas=2, agents=False) as fleet:
        locust = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
        run = subprocess.run(
            [*locust, "--host", fleet.router.http, "-u", "6", "-r", "50", "-t", "5s", "--csv", str(tmp_path / "stats")],
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
