"""Replayed traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.workloads.mooncake import TraceRequest
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.replay import Replay
from loadtest.workloads.text import TextMaker, tokenizer_folder
from loadtest.workloads.traffic import Traffic

TEXT = ChatText.load(tokenizer_folder())
MAKER = TextMaker(TEXT.tokenizer)
AROUND = len(TEXT.token_ids([[{"role": "user", "content": ""}]])[0])


def tokens(replay: Replay, number: int, request: TraceRequest) -> list[int]:
    return TEXT.token_ids([replay.session(number, request).messages(0, [])])[0]


@pytest.mark.parametrize("length", [1, 511, 512, 513, 1_024, 2_000])
@pytest.mark.parametrize("shrink", [1, 8])
def test_prompts_have_the_trace_s_length(length: int, shrink: int) -> None:
    """To the token at the engine, the template's tokens included."""
    replay = Replay(MAKER, 1, 512, AROUND, shrink)
    request = TraceRequest(0.0, length, 10, tuple(range(-(-length // 512))))
    assert len(tokens(replay, 0, request)) == max(AROUND + 1, -(-length // shrink))


def test_equal_leading_blocks_are_a_shared_prefix() -> None:
    """Two prompts that share two of three blocks share these tokens, and not the third block's."""
    replay = Replay(MAKER, 1, 512, AROUND)
    one, other = (tokens(replay, n, TraceRequest(0.0, 1_536, 10, (7, 8, last))) for n, last in enumerate((9, 10)))
    shared = next(place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    assert 1_024 <= shared < 1_024 + 16 + AROUND


def test_what_follows_whole_blocks_is_a_request_s_own() -> None:
    """A recorder that names whole blocks only says nothing about the rest."""
    replay = Replay(MAKER, 1, 512, AROUND)
    one, other = (tokens(replay, n, TraceRequest(0.0, 1_000, 10, (7,))) for n in (0, 1))
    assert len(one) == len(other) == 1_000
    assert one != other
    assert one[:512] == other[:512]


def test_requests_come_at_their_own_times(tmp_path: Path) -> None:
    """In milliseconds after the first, at twice the speed."""
    path = tmp_path / "trace.jsonl"
    lines = [(3_000, 100), (1_000, 200), (2_000, 300)]
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": [at]})
            for at, length in lines
        )
    )
    lanes = Traffic("trace", rate_scale=2.0, trace=path).lanes(tokenizer_folder())
    assert [lane.start_s for lane in lanes] == [0.0, 0.5, 1.0]
    assert [next(lane.sessions).turns[0].answer_tokens for lane in lanes] == [5, 5, 5]


def test_blocks_shrink_by_a_divisor() -> None:
    """Else equal names would not be equal texts."""
    with pytest.raises(ValueError, match="can't be shrunk by 7"):
        Replay(MAKER, 1, 512, 0, 7)
