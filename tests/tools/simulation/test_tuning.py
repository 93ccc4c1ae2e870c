"""The search for weights: reproducible, bounded, and honest about what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.cli import main
from router.config_placement import PlacementConfig
from router.config_yaml import read_yaml
from router.tools.simulation.figures import Row
from router.tools.simulation.requests import Session, Turn
from router.tools.simulation.tuning import TUNED, Candidate, parts_of, tune


@pytest.fixture
def trace(tmp_path) -> Path:
    """Two hundred requests of twenty sessions, more than four small replicas answer at once."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for number in range(200):
        session, turn = number % 20, number // 20
        names = [session * 100 + depth for depth in range(2 + turn)]
        line = {"timestamp": number * 60, "input_length": 512 * len(names), "output_length": 9, "hash_ids": names}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines))
    return path


def _tuned(capsys, trace, folder, *options: str) -> tuple[dict, str, str]:
    file = folder / "placement.yaml"
    words = ["--trace", str(trace), "--replicas", "4", "--blocks", "60", "--tune", str(file), "--json"]
    assert main(["simulate", *words, "--ttft-objective-s", "0.5", *options]) == 0
    out = capsys.readouterr().out
    return json.loads(out.splitlines()[-1]), file.read_text(), out


def test_it_tries_shows_checks_and_writes(capsys, trace, tmp_path) -> None:
    """As many candidates as asked, the default first; the file is a section that the router takes."""
    result, text, out = _tuned(capsys, trace, tmp_path, "--candidates", "7")
    assert len(result["candidates"]) == 7
    assert result["candidates"][0]["weights"] == {name: getattr(PlacementConfig().weights, name) for name in TUNED}
    assert "held out: second half" in out
    section = read_yaml(text, "placement.yaml")["placement"]
    weights = PlacementConfig.model_validate(section).weights
    assert {name: getattr(weights, name) for name in TUNED} == result["weights"]
    goodput = f"{result['held_out']['default']['goodput_share']:.1%}"
    assert f"(default weights: {goodput}" in text


def test_a_seed_finds_the_same_again_and_another_seed_other_weights(capsys, trace, tmp_path) -> None:
    """Nothing but the seed and the results decides what is tried."""
    first = _tuned(capsys, trace, tmp_path, "--candidates", "6", "--seed", "3")[0]
    assert _tuned(capsys, trace, tmp_path, "--candidates", "6", "--seed", "3")[0] == first
    other = _tuned(capsys, trace, tmp_path, "--candidates", "6", "--seed", "4")[0]
    assert [one["weights"] for one in other["candidates"][1:]] != [one["weights"] for one in first["candidates"][1:]]


def _row(goodput: float, p90_s: float) -> Row:
    return Row("cost", 1, 0.5, p90_s, p90_s, p90_s, 1.0, 1.0, goodput, 1)


class _Plan:
    """What a search needs of a plan."""

    seed = 1
    placement = PlacementConfig()


def test_the_budget_ends_the_search_and_leaves_time_for_the_check(monkeypatch) -> None:
    """Each run takes 10 s: of 100 s, two are for the check, and one more might be longer."""
    now, runs = [0.0], []

    def simulated(plan, weights, sessions, on_job):
        now[0] += 10.0
        runs.append(sessions)
        return Candidate(weights, _row(0.5, 1.0))

    monkeypatch.setattr("router.tools.simulation.tuning._try", simulated)
    tuning = tune(_Plan(), ["tuned"], ["held out"], 50, 100.0, clock=lambda: now[0])  # type: ignore[arg-type, list-item]
    assert tuning.cut_short
    assert len(tuning.candidates) == 8
    assert now[0] <= 100.0
    assert runs[-2:] == [["held out"], ["held out"]]


@pytest.mark.parametrize(("elsewhere", "is_kept"), [(0.9, True), (0.4, False)])
def test_the_best_is_kept_only_where_it_holds(monkeypatch, elsewhere, is_kept) -> None:
    """Better on its own half and worse on the other: the default stays."""
    default = {name: getattr(PlacementConfig().weights, name) for name in TUNED}

    def simulated(plan, weights, sessions, on_job):
        own = 0.5 if weights == default else 0.9 if sessions == ["tuned"] else elsewhere
        return Candidate(weights, _row(own, 1.0))

    monkeypatch.setattr("router.tools.simulation.tuning._try", simulated)
    tuning = tune(_Plan(), ["tuned"], ["held out"], 3, 1e9)  # type: ignore[arg-type, list-item]
    assert (tuning.kept != default) is is_kept
    assert all(low <= tuning.kept[name] <= high for name, (low, high) in TUNED.items())


def test_goodput_counts_before_p90() -> None:
    """More requests within the objective are better, whatever the p90; among equals the p90 decides."""
    ranked = sorted([_row(0.9, 1.0), _row(0.95, 3.0), _row(0.95, 2.0)], key=lambda row: Candidate({}, row).rank)
    assert [(row.goodput_share, row.ttft_p90_s) for row in ranked] == [(0.95, 2.0), (0.95, 3.0), (0.9, 1.0)]


def test_a_trace_is_split_in_the_middle_of_its_time() -> None:
    """Not of its requests; the second half begins at 0 again."""
    sessions = [Session(start_s, (Turn(1, 1, ()),)) for start_s in (0.0, 1.0, 2.0, 5.0, 10.0)]
    earlier, later = parts_of(sessions)
    assert [session.start_s for session in earlier] == [0.0, 1.0, 2.0, 5.0]
    assert [session.start_s for session in later] == [5.0]


def test_tuning_takes_no_other_policy(capsys, trace, tmp_path) -> None:
    """All that is wrong at once."""
    words = ["--trace", str(trace), "--replicas", "4", "--blocks", "60", "--policy", "llm-d", "--budget", "0"]
    assert main(["simulate", *words, "--tune", str(tmp_path / "x.yaml")]) == 2
    told = capsys.readouterr().err
    assert "--policy: tuning is of `cost` (leave it out with --tune)" in told
    assert "--budget: 0.0 is out of range (1 to 86400)" in told
