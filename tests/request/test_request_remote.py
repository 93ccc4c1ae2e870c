"""What a replica is asked about prompts without a tokenizer here, and what its answer means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders.table import load
from router.request.reader import PromptReader
from router.request.reasons import Reason
from router.request.remote import ids_in, question_for, take_answer
from router.request.token_cache import TokenCache

GOLDEN = Path(__file__).parents[1] / "golden"
CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
NONE = PromptReader(lambda _: None)
USER = {"role": "user", "content": "hello"}
RECORDED = json.loads((GOLDEN / "engine_http.json").read_text(encoding="utf-8"))
TOKENIZED = [case for case in RECORDED["cases"] if case["path"] == "/tokenize"]
TINY = load(GOLDEN / "tokenizer")


def _ask(path: str, **fields: Any) -> Any:
    body = json.dumps({"model": "m", **fields}).encode()
    question = question_for(NONE.read(path, body), path, body)
    return None if question is None else json.loads(question.body)


def test_about_text() -> None:
    """A completion's text, with BOS unless it is not wanted; of several texts the first."""
    expected = {"model": "m", "prompt": "a b", "add_special_tokens": True}
    assert _ask(COMPLETION, prompt="a b") == expected
    assert _ask(COMPLETION, prompt=["a b", "c"], add_special_tokens=True) == expected
    assert _ask(COMPLETION, prompt="a b", add_special_tokens=False) == {**expected, "add_special_tokens": False}


def test_about_chats() -> None:
    """A chat's fields go on as they are; the effort and documents as the variables that the chat API makes of them."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = _ask(CHAT, messages=[USER], tools=tools, reasoning_effort="low", documents=[{"a": 1}], temperature=1)
    assert asked == {
        "model": "m",
        "messages": [USER],
        "tools": tools,
        "add_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low", "documents": [{"a": 1}]},
    }


def test_about_reasoning() -> None:
    """Reasoning under its older name, which the chat API alone knows, goes on under the newer one."""
    said = {"role": "assistant", "content": "c"}
    older, both = {**said, "reasoning_content": "o"}, {**said, "reasoning": "r", "reasoning_content": "o"}
    asked = _ask(CHAT, messages=[USER, older, both])
    assert asked["messages"] == [USER, {**said, "reasoning": "o"}, {**said, "reasoning": "r"}]


def test_about_parts() -> None:
    """Text parts go on under the one type that `/tokenize` takes in every message; other fields are left."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b", "cache_control": 1}, "c"]
    asked = _ask(RESPONSES, input=[{"type": "message", "role": "user", "content": parts}])
    assert asked["messages"][0]["content"] == [{"type": "text", "text": "a"}, *parts[1:]]


def test_about_responses() -> None:
    """A response is asked about as the chat that it becomes, with the special tokens that its API adds."""
    asked = _ask(RESPONSES, input="hello", instructions="brief")
    assert asked["messages"] == [{"role": "system", "content": "brief"}, USER]
    assert asked["add_special_tokens"] is True


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETION, {"prompt": [1, 2]}),
        (COMPLETION, {"prompt": "x", "truncate_prompt_tokens": 5}),
        (CHAT, {"messages": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
    ],
)
def test_nothing_to_ask(path: str, fields: dict[str, Any]) -> None:
    """What neither `/tokenize` nor a rendering can tell, or needs not, is not asked."""
    assert _ask(path, **fields) is None


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [USER], "truncate_prompt_tokens": 5}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 1}),
    ],
)
def test_what_tokenize_has_no_words_for(path: str, fields: dict[str, Any]) -> None:
    """The engine's rendering is asked about it, in the client's own words, without what it refuses or need not make."""
    body = json.dumps({"model": "m", "stream": True, "use_beam_search": False, **fields}).encode()
    question = question_for(NONE.read(path, body), path, body)
    assert question is not None
    assert question.path == f"{path}/render"
    assert json.loads(question.body) == {"model": "m", **fields, "mm_payload": "none"}


def test_prompts_that_are_understood_are_not_asked_about() -> None:
    """With a tokenizer here there is no question."""
    body = json.dumps({"messages": [USER]}).encode()
    assert question_for(PromptReader(lambda _: TINY).read(CHAT, body), CHAT, body) is None


def test_an_answer_completes_the_prompt() -> None:
    """The prompt has the ids, its length, and their chain."""
    prompt = NONE.read(CHAT, json.dumps({"model": "m", "messages": [USER]}).encode())
    assert prompt.reason is Reason.NO_TOKENIZER
    ids = list(range(2_000))
    scheme = Scheme(HashAlgorithm.SHA256_CBOR, 16)
    take_answer(prompt, ids, TokenCache())
    assert (prompt.token_ids, prompt.tokens, prompt.reason) == (ids, 2_000, None)
    assert prompt.chain(scheme, None) == chain(ids, scheme)


def test_an_empty_answer() -> None:
    """No ids: the prompt is empty."""
    prompt = NONE.read(COMPLETION, b'{"model": "m", "prompt": ""}')
    take_answer(prompt, [])
    assert (prompt.token_ids, prompt.reason) == (None, Reason.EMPTY)


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"tokens": "x"}', b'{"tokens": [1, "a"]}', b'{"error": {}}'])
def test_odd_answers(answer: bytes) -> None:
    """What is no answer of `/tokenize` gives no ids."""
    assert ids_in(answer) is None


@pytest.mark.parametrize("case", TOKENIZED, ids=lambda case: case["name"])
def test_the_engines_own_answers(case: dict[str, Any]) -> None:
    """A recorded answer of the running engine gives the ids that are made here of the same request."""
    path = CHAT if "messages" in case["body"] else COMPLETION
    own = PromptReader(lambda _: TINY).read(path, json.dumps(case["body"]).encode())
    assert ids_in(json.dumps(case["json"]).encode()) == (own.token_ids if case["status"] == 200 else None)
