"""Recorded traces: what `simulate` needs and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.workloads.mooncake import recorded_block_tokens
from router.errors import ConfigurationError
from router.kv.schemes import HashAlgorithm, Scheme
from router.scheduling.decision import Outcome
from router.telemetry import request_trace
from router.telemetry.request_trace import RequestTrace
from router.tools.simulation.trace import read_trace


def placement(chain: list[int], block_size: int = 16, tokens: int = 0) -> SimpleNamespace:
    unit = SimpleNamespace(scheme=Scheme(HashAlgorithm.SHA256_CBOR, block_size))
    return SimpleNamespace(unit=unit, chain=chain, decision=SimpleNamespace(prompt_tokens=tokens))


def outcome(prompt_tokens: int | None, completion_tokens: int | None = 7, total_s: float = 0.0) -> Outcome:
    return Outcome(200, None, prompt_tokens, 0, completion_tokens, 0.1, total_s)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_names_are_equal_as_far_as_prompts_are(tmp_path) -> None:
    """Blocks of 16 are taken by fours: of 9 blocks two names are of whole ones, the third is of this prompt alone."""
    trace = RequestTrace(tmp_path / "t")
    first, other = list(range(1, 10)), [*range(1, 6), 50, 51, 52, 53]
    for chain in (first, first, other):
        trace.write(placement(chain), outcome(150))
    trace.close()
    one, again, two = (line["hash_ids"] for line in lines(tmp_path / "t"))
    assert len(one) == 3
    assert one[:2] == again[:2]
    assert one[2] != again[2]
    assert two[0] == one[0]
    assert two[1] != one[1]


def test_hashes_can_not_be_found_again_and_keys_differ(tmp_path) -> None:
    """A name is no block hash, and another recording names the same block otherwise."""
    names = []
    for number in range(2):
        trace = RequestTrace(tmp_path / str(number))
        trace.write(placement([11], block_size=64), outcome(64))
        trace.close()
        names += lines(tmp_path / str(number))[0]["hash_ids"]
    assert names[0] != names[1]
    assert 11 not in names


def test_simulate_reads_what_was_recorded(tmp_path) -> None:
    """Times of arrival, lengths and block length come back; engines' larger blocks stay as they are."""
    now = [100.0]
    trace = RequestTrace(tmp_path / "t", lambda: now[0])
    now[0] = 103.0
    trace.write(placement(list(range(3)), block_size=128), outcome(400, total_s=2.5))
    trace.write(placement([], block_size=128, tokens=90), outcome(None, None, total_s=1.0))
    trace.close()
    assert recorded_block_tokens(tmp_path / "t") == 128
    known, unknown = read_trace(tmp_path / "t", 128)
    assert (known.start_s, known.turns[0].prompt_tokens, known.turns[0].output_tokens) == (0.5, 400, 7)
    assert (unknown.start_s, unknown.turns[0].prompt_tokens, unknown.turns[0].output_tokens) == (2.0, 90, 1)
    with pytest.raises(ConfigurationError, match="its blocks have 128 tokens, others 64"):
        read_trace(tmp_path / "t", 64)


def test_an_earlier_trace_is_kept_and_the_file_is_private(tmp_path) -> None:
    """A restart overwrites nothing."""
    for _ in range(2):
        trace = RequestTrace(tmp_path / "t")
        trace.write(placement([1], block_size=64), outcome(64))
        trace.close()
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["t", "t"]
    assert all(len(lines(path)) == 1 for path in tmp_path.iterdir())
    assert (tmp_path / "t").stat().st_mode & 0o077 == 0


def test_a_file_that_can_not_be_made_is_a_problem_of_the_configuration(tmp_path) -> None:
    """Said with the key."""
    with pytest.raises(ConfigurationError, match=r"record: .*No such file or directory"):
        RequestTrace(tmp_path / "missing" / "t")


def test_recording_ends_at_its_bound(tmp_path, monkeypatch) -> None:
    """The disk is not filled, and requests go on."""
    monkeypatch.setattr(request_trace, "MAX_FILE_BYTES", 300)
    trace = RequestTrace(tmp_path / "t")
    for _ in range(10):
        trace.write(placement([1], block_size=64), outcome(64))
        trace.writer.flush()
    trace.close()
    assert 0 < (tmp_path / "t").stat().st_size <= 300
    assert len(lines(tmp_path / "t")) < 10
