"""`make bench-placement`: runs are kept, tables compare what they say they compare."""

from __future__ import annotations

import sys

import pytest

from router.tools.bench_placement import __main__ as command
from router.tools.bench_placement import measures
from router.tools.bench_placement.cells import Bench, Result
from router.tools.bench_placement.measures import Setting


def _result(p90_s: float, hit: float = 0.5, goodput: float = 1.0) -> Result:
    return Result({"ttft_p90_s": p90_s, "hit_rate": hit, "goodput_share": goodput, "output_tokens_per_s": 1.0}, 1.0)


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """Nothing is simulated: the p90 is the seed, as tenths, plus a second for peers, ten for sglang."""
    seen: list[str] = []

    def simulated(bench, words):
        seen.append(" ".join(words))
        policy, seed = words[words.index("--policy") + 1], float(words[words.index("--seed") + 1])
        return _result(seed / 10 + (0 if policy == "cost" else 10 if policy == "sglang" else 1))

    monkeypatch.setattr(Bench, "_simulate", simulated)
    return seen


def test_a_run_is_kept_in_the_cache(runs, tmp_path) -> None:
    """A second bench with the same file simulates nothing; results of other code do not count."""
    cache = tmp_path / "results.jsonl"
    options = ("--workload", "chat", "--policy", "cost", "--seed", 3)
    first = Bench(cache).run(*options)
    assert Bench(cache).run(*options) == first
    assert len(runs) == 1
    cache.write_text(cache.read_text().replace('"code": "', '"code": "other-'))
    assert Bench(cache).run(*options) == first
    assert len(runs) == 2


def test_a_run_is_what_the_command_gives(tmp_path) -> None:
    """The options are those of `warmroute simulate`."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 800, "output_length": 4, "hash_ids": [1, 2]}\n')
    result = Bench(None).run("--trace", trace, "--replicas", 2, "--blocks", 9, "--policy", "cost")
    assert result.p90_s == pytest.approx(0.1)


def test_medians_are_compared_and_who_is_far_behind_is_left_out(runs) -> None:
    """Seeds 1, 2, 9: 0.2 s against 1.2 s; of sglang only the first seed is run."""
    rows = list(measures.batched(Bench(None), Setting(None, (1, 2, 9), everything=False)))
    chat = next(row for row in rows if row[0] == "chat")
    assert chat[1] == "0.20 s"
    assert chat[3] == "1.20 s"
    assert chat[4] == "-83.3%"
    assert sum("--workload chat" in run and "--policy sglang " in run for run in runs) == 1
    assert sum("--workload chat" in run and "--policy llm-d " in run for run in runs) == 3


def test_without_a_trace_what_needs_it_is_left_out(runs, monkeypatch, capsys) -> None:
    """And said so; the others are printed as tables."""
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "serial,routers", "--seeds", "1"])
    assert command.main() == 0
    out = capsys.readouterr().out
    assert "left out: it needs --trace" in out
    assert "| chat | 8 | 0.500 | 0.10 s | +0.0% |" in out


def test_an_unknown_measure_is_named(monkeypatch, capsys) -> None:
    """With those that there are."""
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "speed"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "there is no measure 'speed', only serial, grid, batched" in capsys.readouterr().err
