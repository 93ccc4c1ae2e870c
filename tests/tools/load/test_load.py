"""`make loadtest`: a target, a local fleet, what is refused, and the exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from loadtest.workloads.presets import PRESETS
from loadtest.workloads.traffic import Traffic
from router.tools.load.__main__ import main
from router.tools.local_fleet import EngineOptions
from router.tools.processes import Child, stop_all, wait_for


def test_all_that_is_wrong_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    wrong_names = ["--workload", "chta", "--policies", "cots", "--peer", "sglag-router", "--target", "localhost"]
    assert main([*wrong_names, "--kill", "4@20", "--users", "3", "--stages", "2x3"]) == 2
    told = capsys.readouterr().err
    for wrong in (
        "chta is not known",
        "cots is not known",
        "sglag-router is not known",
        "localhost is no URL",
        "there is no replica 4",
        "is nothing to start",
        "--users is a closed loop",
    ):
        assert wrong in told


def test_every_preset_makes_its_sessions() -> None:
    """As many as its stages say, about; the same for the same seed."""
    for name, preset in PRESETS.items():
        if name == "llm-d":  # prompts of 7,200 tokens at 60 a second take minutes to make
            continue
        traffic = Traffic(name, rate_scale=0.2)
        expected = sum(stage.rate_per_s * stage.duration_s for stage in preset.stages) * 0.2
        lanes = traffic.lanes(EngineOptions().folder)
        assert abs(len(lanes) - expected) < 5 * expected**0.5, name
        again = traffic.lanes(EngineOptions().folder)
        assert [next(lane.sessions) for lane in lanes] == [next(lane.sessions) for lane in again]


@pytest.mark.slow
def test_a_running_system_is_measured_and_compared(tmp_path: Path) -> None:
    """A closed loop against one engine: report, baseline, and a comparison with it; then one that can't be reached."""
    options = EngineOptions(num_blocks=2_000, prefill_tokens_per_s=80_000, decode_step_s=0.001)
    engine = Child("engine", [sys.executable, "-m", "router.cli", "simengine", *options.arguments()], tmp_path)
    out, stored = tmp_path / "out", tmp_path / "baseline.json"
    try:
        url = wait_for("the engine", engine.ready_line, [engine], 30)["http"]
        arguments = ["--target", url, "--workload", "documents,few-shot", "--users", "4", "--sessions", "12"]
        arguments += ["--warm-up", "0", "--out", str(out)]
        assert main([*arguments, "--write-baseline", str(stored)]) == 0
        told = json.loads((out / "report.json").read_text())
        documents, few_shot = told["runs"]
        assert 24 <= documents["requests"] <= 48  # 12 sessions of 2 to 4 questions
        assert few_shot["requests"] == 12
        # What follows the first question repeats all of the document.
        assert 0.4 < documents["measures"]["hit_rate"]["value"] < 0.95
        assert documents["errors"] == {}
        assert (out / "report.html").read_text().startswith("<!doctype html>")
        changed = json.loads(stored.read_text())
        for run in changed["runs"].values():
            run["measures"]["hit_rate"] |= {"value": 0.999, "standard_error": 0.0001}
        stored.write_text(json.dumps(changed))
        assert main([*arguments, "--baseline", str(stored)]) == 1
        told = json.loads((out / "report.json").read_text())
        # The salt keeps it from what the first run left in the cache.
        assert told["runs"][1]["measures"]["hit_rate"]["value"] == few_shot["measures"]["hit_rate"]["value"]
        assert {each["verdict"] for each in told["baseline"] if each["measure"] == "hit_rate"} == {"worse"}
    finally:
        stop_all([engine])
    assert main(arguments) == 1
    told = json.loads((out / "report.json").read_text())
    assert set(told["runs"][0]["errors"]) == {"not-connected"}


@pytest.mark.slow
def test_policies_run_in_turn_on_a_local_fleet(tmp_path: Path) -> None:
    """A trace of 12 requests, under two policies: the same requests, a ledger each, hits where prefixes are shared."""
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 400 * number, "input_length": 1_100, "output_length": 16, "hash_ids": [number % 2, 7, number + 9]}
        for number in range(12)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["--trace", str(trace), "--policies", "cost,round-robin", "--warm-up", "0", "--out", str(tmp_path)]
    arguments += ["--replicas", "2", "--shrink", "8", "--time-scale", "8", "--adapters", "a0", "--tenants", "2"]
    assert main(arguments) == 0
    told = json.loads((tmp_path / "report.json").read_text())
    assert [run["policy"] for run in told["runs"]] == ["cost", "round-robin"]
    assert [run["requests"] for run in told["runs"]] == [12, 12]
    for run in told["runs"]:
        assert run["errors"] == {}
        # Prompts are 1,100 / 8 tokens, rounded up, the template's included; the engines count the same.
        assert sum(run["ledger"].values()) == run["scraped"]["query_tokens"] == 12 * 138
        assert run["scraped"]["answered"] == 12
        assert run["measures"]["hit_rate"]["value"] == run["scraped"]["engines_hit_rate"]
        assert set(run["by_tenant"]) == {"0", "1"}
        assert set(run["by_model"]) == {"tiny", "a0"}
