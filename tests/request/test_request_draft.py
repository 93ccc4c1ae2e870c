"""What is known of a prompt before the work on it is done: what it is for, then the beginning that needs no work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders.table import Options, load_text
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.request.reasons import Reason
from router.request.token_cache import TokenCache

CHAT = "/v1/chat/completions"
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


@pytest.fixture
def reader(golden: Path) -> PromptReader:
    """A reader with a cache."""
    cache = TokenCache(2**20)
    text = load_text(golden / "tokenizer", Options(cache=cache))
    return PromptReader(lambda model: text, cache=cache)


def body(*contents: str) -> bytes:
    roles = ("user", "assistant")
    messages: list[dict[str, Any]] = [
        {"role": roles[number % 2], "content": text} for number, text in enumerate(contents)
    ]
    return json.dumps({"model": "tiny", "messages": messages, "stream": True}).encode()


def drafts(reader: PromptReader, data: bytes) -> tuple[list[tuple[Reason | None, list[int] | None, int]], Prompt]:
    """Read a body; return each draft as it was when it was told, and the prompt."""
    told: list[tuple[Reason | None, list[int] | None, int]] = []
    prompt = reader.read(CHAT, data, lambda draft: told.append((draft.reason, draft.token_ids, draft.tokens)))
    return told, prompt


def test_facts_come_before_the_tokens(reader: PromptReader) -> None:
    """Model and stream are known at once; of a text that is all new nothing else is."""
    told, prompt = drafts(reader, body("fresh " * 50))
    assert [(reason, ids) for reason, ids, _ in told] == [(None, None)]
    assert (prompt.model, prompt.stream) == ("tiny", True)
    facts = reader.facts(CHAT, body("fresh " * 50))
    assert (facts.model, facts.stream, facts.token_ids) == ("tiny", True, None)


def test_of_a_conversation_s_next_turn_the_beginning_is_known_before_the_new_message_is(reader: PromptReader) -> None:
    """The ids are a prefix of the whole prompt's, and so is their chain."""
    turns = ["one " * 80, "two " * 80, "three " * 80]
    drafts(reader, body(*turns))
    told, prompt = drafts(reader, body(*turns, "four " * 80, "five " * 900))
    [_, (reason, ids, tokens)] = told
    assert reason is Reason.DEADLINE
    assert ids is not None
    assert prompt.token_ids is not None
    assert 200 < len(ids) < tokens
    assert prompt.token_ids[: len(ids)] == ids
    whole = prompt.chain(SCHEME, None)
    assert whole[: len(ids) // 16] == chain(ids, SCHEME)


def test_what_is_known_whole_is_told_once(reader: PromptReader) -> None:
    """There is no work to be late with."""
    drafts(reader, body("one " * 80, "two " * 80))
    told, _ = drafts(reader, body("one " * 80, "two " * 80))
    assert len(told) == 1


def test_a_draft_s_tokens_count_when_time_is_over(reader: PromptReader) -> None:
    """With tokens it keeps them, without it is placed by load; both say why."""
    kept: list[Prompt] = []
    reader.read(CHAT, body("one " * 80, "two " * 80))
    reader.read(CHAT, body("one " * 80, "two " * 80, "three " * 900), kept.append)
    late = kept[1].until_now(Reason.DEADLINE)
    assert (late.reason, late.token_ids is not None) == (Reason.DEADLINE, True)
    bare = kept[0].until_now(Reason.QUEUE_FULL)
    assert (bare.reason, bare.token_ids, bare.chain(SCHEME, None)) == (Reason.QUEUE_FULL, None, [])
