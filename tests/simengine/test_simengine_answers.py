"""Every answer of the real engine that was recorded, asked of the simulated one: statuses, shapes, counts, messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "engine_http.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["cases"]

# Differ from run to run or with the model's text. A path ends in one of these, or has one of the parts.
ENDS = (".id", ".created", ".text", ".content", ".system_fingerprint", ".endpoint", ".replay_endpoint")
PARTS = (".token_ids[", "token_logprobs", ".tokens[", "top_logprobs", "text_offset")

EXPLAINED = {
    # The recorded answer before it continued this prompt with its own token; ours continues it with words.
    "one_less_than_the_model": (".usage.prompt_tokens_details.cached_tokens",),
    # The engine spells out a branch of its schema for each role; we say the one thing that is wrong.
    "message_without_role": (".error.message", ".error.param"),
}


@pytest.fixture(scope="module")
def answers(recorded_engine: Any) -> dict[str, tuple[int, dict[str, str], bytes]]:
    """All cases sent in their order: repeats come after what they repeat."""
    collected = {}
    for case in CASES:
        body: Any = case["raw"].encode() if "raw" in case else case.get("body")
        if isinstance(body, dict) and isinstance(body.get("prompt"), str) and " repeated " in body["prompt"]:
            token, _, times, _ = body["prompt"].split()
            body = {**body, "prompt": [int(token)] * int(times)}
        collected[case["name"]] = recorded_engine.send(case["method"], case["path"], body, case.get("headers"))
    return collected


def differences(wanted: Any, got: Any, path: str = "") -> Iterator[str]:
    if "top_logprobs[" in path:
        return  # its names are tokens
    if isinstance(wanted, dict) and isinstance(got, dict):
        if list(wanted) != list(got):
            yield f"{path}: has {list(got)}, not {list(wanted)}"
        for name in wanted.keys() & got.keys():
            yield from differences(wanted[name], got[name], f"{path}.{name}")
    elif isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) != len(got) and not any(part in f"{path}[" for part in PARTS):
            yield f"{path}: {len(got)} elements, not {len(wanted)}"
        for index, (one, other) in enumerate(zip(wanted, got, strict=False)):
            yield from differences(one, other, f"{path}[{index}]")
    elif (
        wanted != got and not (type(wanted) is type(got) and path.endswith(ENDS)) and not any(x in path for x in PARTS)
    ):
        yield f"{path}: {got!r}, not {wanted!r}"


def events(data: bytes) -> list[str]:
    """The data lines of a stream, framed by empty lines."""
    frames = data.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [frame.removeprefix("data: ") for frame in frames]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_it_answers_as_the_real_engine_did(answers: dict[str, Any], case: dict[str, Any]) -> None:
    """Status, declared headers, fields in order, counts and messages are the recorded ones."""
    status, headers, data = answers[case["name"]]
    assert status == case["status"], data
    for name, value in (case.get("answer_headers") or {}).items():
        assert headers.get(name) == value
    explained = EXPLAINED.get(case["name"], ())
    if "json" in case:
        found = list(differences(case["json"], json.loads(data)))
        assert [each for each in found if not each.startswith(explained)] == []
    elif "events" in case:
        ours, theirs = events(data), case["events"]
        assert ours[-1] == theirs[-1] == "[DONE]"
        # Chunks of different answers interleave as they come: compare each answer's own.
        assert len(ours) == len(theirs)
        assert list(differences(by_answer(theirs[:-1]), by_answer(ours[:-1]))) == []
    else:
        assert data.decode() == case["text"]


def by_answer(chunks: list[str]) -> list[Any]:
    """Chunks ordered by the answer they belong to; those of none (usage) last."""
    parsed = [json.loads(chunk) for chunk in chunks]
    return sorted(parsed, key=lambda chunk: chunk["choices"][0]["index"] if chunk["choices"] else len(chunks))
