"""The model's text and the answers made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replica.simengine.refusals import Refusal
from replica.simengine.text import Text
from replica.simengine.words import Words


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(Path(__file__).parents[1] / "golden" / "tokenizer")


@pytest.fixture(scope="module")
def words(text: Text) -> Words:
    return Words(text)


def test_recorded_prompts_are_tokenised_as_the_engine_did(text: Text, golden: Path) -> None:
    """Texts and chats (tools, tool results, text parts, a message to go on with) give the recorded token ids."""
    compared = 0
    for vector in json.loads((golden / "vectors" / "vllm-0.32-hashes.json").read_text())["engine"]:
        body = vector["body"]
        if vector["status"] != 200:
            continue
        if "messages" in body:
            ids = text.encode(text.render(body), add_special_tokens=False)
        elif isinstance(body["prompt"], str):
            ids = text.encode(body["prompt"])
        else:
            continue
        assert ids == vector["prompt_token_ids"], vector["name"]
        compared += 1
    assert compared == 26


@pytest.mark.parametrize("opens_line", [True, False])
def test_answers_survive_decoding_and_encoding(text: Text, words: Words, opens_line: bool) -> None:
    """300 answers of 40 tokens come back as the ids they were made of, special tokens never among them."""
    for prompt in range(300):
        source = words.answer("seed", [prompt], 0, opens_line=opens_line)
        ids = [source() for _ in range(40)]
        assert text.encode("".join(words.text[token] for token in ids), add_special_tokens=False) == ids
        assert min(ids) > 2


def test_an_answer_is_the_same_in_every_process(words: Words) -> None:
    """It depends on seed, prompt and choice alone."""

    def first(seed: str, prompt: list[int], choice: int) -> list[int]:
        source = words.answer(seed, prompt, choice, opens_line=False)
        return [source() for _ in range(8)]

    base = first("s", [1, 2], 0)
    assert first("s", [1, 2], 0) == base
    assert first("t", [1, 2], 0) != base
    assert first("s", [1, 3], 0) != base
    assert first("s", [1, 2], 1) != base


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty conversation"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "reads text alone"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "not JSON"),
    ],
)
def test_messages_that_no_prompt_can_be_made_of_are_refused(text: Text, messages: list[object], reason: str) -> None:
    """With a 400 that says why."""
    with pytest.raises(Refusal, match=reason) as caught:
        text.render({"messages": messages})
    assert caught.value.status == 400
