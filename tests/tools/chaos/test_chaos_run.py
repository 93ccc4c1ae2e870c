"""`make chaos` in short: one round of faults on a fleet of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_run_passes(tmp_path: Path) -> None:
    """Faults of several kinds under traffic: no request fails, and both indexes are the engines' block for block."""
    command = [sys.executable, "-m", "router.tools.chaos", "--seed", "3", "--rounds", "1", "--seconds", "25"]
    ended = subprocess.run([*command, "--logs", str(tmp_path)], capture_output=True, text=True, timeout=380)
    assert ended.returncode == 0, ended.stdout[-5_000:] + ended.stderr[-2_000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["passed"]
    assert result["failures"] == 0
    assert result["comparisons"] == 1
    assert result["faults_total"] >= 10
    assert result["blocks_compared"] >= 200
    assert result["requests"] >= 50


def test_a_round_must_leave_time_to_compare() -> None:
    """Exit code 2 for what can't be run."""
    command = [sys.executable, "-m", "router.tools.chaos", "--seconds", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "of more than 10 seconds" in ended.stderr
