"""Generated traffic: seeded, as fast as asked, of the sharing that its name says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from router.cli import main
from router.tools.simulation.figures import shared_cache_hit_rate
from router.tools.simulation.trace import asked_blocks
from router.tools.simulation.workloads import SCENARIOS, sessions_of


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_seed_gives_the_same_sessions_in_order(name) -> None:
    """The same again with the same seed, others with another, sorted by start."""
    scenario = SCENARIOS[name]
    short = replace(scenario, stages=[replace(stage, duration_s=8) for stage in scenario.stages])
    assert sessions_of(short, 64, 1.0, 1) == sessions_of(short, 64, 1.0, 1)
    assert sessions_of(short, 64, 1.0, 1) != sessions_of(short, 64, 1.0, 2)
    sessions = sessions_of(scenario, 64, 1.0, 1)
    starts = [session.start_s for session in sessions]
    assert starts == sorted(starts)
    expected = sum(stage.rate_per_s * stage.duration_s for stage in scenario.stages) + sum(
        count for _, count, _ in scenario.crowds
    )
    assert len(sessions) == pytest.approx(expected, rel=0.25)


def test_llm_d_has_150_groups_of_5_prompts_of_7200_tokens() -> None:
    """As published: 6,000 tokens of a system prompt and 1,200 of a question, beside what the template adds."""
    sessions = sessions_of(SCENARIOS["llm-d"], 16, 1.0, 0)
    prompts = {session.turns[0].blocks for session in sessions}
    assert len(prompts) == 750
    assert len({blocks[: 6_000 // 16] for blocks in prompts}) == 150
    assert {session.turns[0].prompt_tokens - 7_200 for session in sessions} == {3 + 2 + 3 + 2 + 3}
    assert {session.turns[0].output_tokens for session in sessions} == {1_000}


@pytest.mark.parametrize(
    ("name", "least", "most"), [("stamp-first", 0, 0), ("stamp-last", 0.8, 0.9), ("no-reuse", 0, 0)]
)
def test_what_can_be_shared_is_what_the_name_says(name, least, most) -> None:
    """The hit rate of one endless cache."""
    rate = shared_cache_hit_rate(asked_blocks(sessions_of(SCENARIOS[name], 64, 1.0, 0)), 10**9)
    assert least <= rate <= most


def test_twice_the_speed_is_half_the_time() -> None:
    """Of the arrivals; what is asked stays the same."""
    slow, fast = (sessions_of(SCENARIOS["bursts"], 64, speed, 4) for speed in (1.0, 2.0))
    assert [session.start_s for session in fast] == pytest.approx([session.start_s / 2 for session in slow])
    assert [session.turns for session in fast] == [session.turns for session in slow]


def test_a_workload_brings_its_fleet(capsys) -> None:
    """`--workload` needs no sizes; options change them."""
    words = ["simulate", "--workload", "idle", "--engine", "batched", "--policy", "cost,round-robin", "--json"]
    assert main(words) == 0
    cost, turns = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert cost["ttft_p90_s"] <= turns["ttft_p90_s"] * 1.02
    assert main([*words, "--replicas", "0"]) == 2
    assert "--replicas: 0 is out of range" in capsys.readouterr().err


def test_a_trace_needs_sizes(capsys, tmp_path) -> None:
    """Replicas and blocks are not guessed."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}')
    assert main(["simulate", "--trace", str(path), "--policy", "cost"]) == 2
    told = capsys.readouterr().err
    assert "--replicas: is missing" in told
    assert "--blocks: is missing" in told
