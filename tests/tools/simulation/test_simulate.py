"""`warmroute simulate` as a command: published figures, bad input, the router's own code under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.cli import main
from router.config_placement import POLICIES
from router.tools.simulation.peers import PEERS


@pytest.fixture
def trace(tmp_path) -> Path:
    """Forty requests, three of a session each, a tenth of a second apart; blocks of 512 tokens."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for number in range(40):
        session, turn = number % 10, number // 10
        names = [session * 100 + depth for depth in range(2 + turn)]
        lines.append(
            {"timestamp": number * 100, "input_length": 512 * len(names) - 7, "output_length": 5, "hash_ids": names}
        )
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def _simulate(capsys, trace, *options: str) -> dict:
    assert main(["simulate", "--trace", str(trace), "--replicas", "4", "--blocks", "50", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_every_policy_runs_and_answers_every_request(capsys, trace) -> None:
    """A row a policy, in the order asked, on both models of an engine."""
    names = [*POLICIES, *PEERS]
    for engine in ("serial", "batched"):
        result = _simulate(capsys, trace, "--engine", engine, "--policy", ",".join(names))
        assert [row["policy"] for row in result["rows"]] == names
        assert all(row["requests"] == 40 and 0 < row["ttft_p50_s"] <= row["ttft_p99_s"] for row in result["rows"])


def test_round_robin_by_hand(capsys, trace) -> None:
    """Ten sessions over four replicas: turn t of session s goes to replica (10 t + s) mod 4, where turn t - 2 was."""
    row = _simulate(capsys, trace, "--policy", "round-robin")["rows"][0]
    hit = 10 * 2 + 10 * 3  # turns 2 and 3 find the blocks of turns 0 and 1
    assert row["hit_rate"] == pytest.approx(hit / (10 * (2 + 3 + 4 + 5)), abs=1e-4)


def test_the_queue_by_hand(capsys, tmp_path) -> None:
    """Three prompts of 4,000 tokens come at once to one engine of 8,000 tokens/s: 0, 0.5 and 1 s wait before them."""
    path = tmp_path / "three.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 4_000, "output_length": 1, "hash_ids": [8 * number + i for i in range(8)]}
        for number in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    row = _simulate(capsys, path, "--policy", "round-robin", "--replicas", "1")["rows"][0]
    assert row["queue_s"] == pytest.approx((0 + 0.5 + 1) / 3, abs=1e-3)


def test_cost_keeps_sessions_where_they_are(capsys, trace) -> None:
    """With caches that hold everything every turn finds the one before it: the bound."""
    result = _simulate(capsys, trace, "--policy", "cost")
    assert result["rows"][0]["hit_rate"] == result["bound_hit_rate"]


def test_a_seed_gives_the_same_rows_again(capsys, trace) -> None:
    """Chance comes from the seed alone."""
    options = ("--policy", "random,power-of-two,cost", "--routers", "3", "--event-loss-share", "0.2", "--seed", "5")
    assert _simulate(capsys, trace, *options) == _simulate(capsys, trace, *options)


def test_bad_options_are_all_named_at_once(capsys, trace) -> None:
    """Exit code 2, each with what would be right."""
    words = ["--replicas", "0", "--blocks", "50", "--policy", "best", "--weight", "price_bas=1"]
    assert main(["simulate", "--trace", str(trace), *words]) == 2
    told = capsys.readouterr().err
    assert "--replicas: 0 is out of range (1 to 1000)" in told
    assert "there is no policy 'best' (one of: cost" in told
    assert "there is no weight 'price_bas' (one of: running_tokens" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[]", "not a JSON object"),
        ("{", "unexpected end of data"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}', "input_length must be a number"),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1, 2]}',
            "2 hash_ids do not fit 9 tokens",
        ),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["a"]}', "list of whole numbers"),
    ],
)
def test_a_bad_line_is_named_with_its_number(capsys, tmp_path, line, told) -> None:
    """Whatever is wrong with it."""
    path = tmp_path / "bad.jsonl"
    good = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}'
    path.write_text(f"{good}\n{line}\n")
    assert main(["simulate", "--trace", str(path), "--replicas", "1", "--blocks", "9", "--policy", "cost"]) == 2
    error = capsys.readouterr().err
    assert f"{path}:2: " in error
    assert told in error


def test_the_page_names_every_policy(capsys, trace, tmp_path) -> None:
    """`--html` writes one page with the same figures."""
    page = tmp_path / "page.html"
    row = _simulate(capsys, trace, "--policy", "cost,round-robin", "--html", str(page))["rows"][0]
    text = page.read_text()
    assert "round-robin" in text
    assert f"{row['hit_rate']:.3f}" in text


def test_rounded_times_can_be_spread(capsys, trace) -> None:
    """Forty requests within 4 s, moved by up to 36 s: hardly anybody waits for anybody."""
    crowded = _simulate(capsys, trace, "--policy", "round-robin", "--speed", "100")["rows"][0]
    alone = _simulate(capsys, trace, "--policy", "round-robin", "--speed", "100", "--spread-s", "3600")["rows"][0]
    assert alone["ttft_p50_s"] < crowded["ttft_p50_s"] / 2
