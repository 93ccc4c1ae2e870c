"""What can be gone on with, and what is then asked of another replica."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.request.continuation import CHAT, COMPLETIONS, Continuation

CHAT_BODY: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
TEXT_BODY: dict[str, Any] = {"model": "m", "stream": True, "prompt": "Once"}


def event(data: object) -> bytes:
    """As vLLM writes one."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chat(content: str, name: str = "a", **more: Any) -> bytes:
    """A chunk of a chat."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None, **more}
    return event({"id": name, "created": 1, "choices": [choice]})


def text(said: str, name: str = "a", **more: Any) -> bytes:
    """A chunk of a completion."""
    return event({"id": name, "created": 1, "choices": [{"index": 0, "text": said, "finish_reason": None, **more}]})


def role(name: str = "a") -> bytes:
    """How a chat begins."""
    return chat("", name, delta={"role": "assistant", "content": ""})


def continuation(body: dict[str, Any]) -> Continuation | None:
    """Of a request with this body."""
    return Continuation.of(CHAT if "messages" in body else COMPLETIONS, json.dumps(body).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 2}, {"stream": False}, {"tools": [{}]}, {"logprobs": True}, {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}}, {"continue_final_message": True, "add_generation_prompt": False},
        {"add_generation_prompt": False}, {"echo": True}, {"return_token_ids": True}, {"messages": []}, {"best_of": 2},
    ],
)  # fmt: skip
def test_what_is_more_than_one_text_is_not_gone_on_with(changes: dict[str, Any]) -> None:
    """Such a stream is cut as ever."""
    assert continuation(CHAT_BODY) is not None
    assert continuation({**CHAT_BODY, **changes}) is None


@pytest.mark.parametrize("prompt", [[1, 2], ["a", "b"], None])
def test_completions_go_on_from_one_text_alone(prompt: Any) -> None:
    """Token ids end where no text begins."""
    assert continuation({**TEXT_BODY, "prompt": prompt}) is None


def test_other_endpoints_are_left_alone() -> None:
    """And bodies that are no JSON."""
    assert Continuation.of("/v1/responses", json.dumps(CHAT_BODY).encode()) is None
    assert Continuation.of(CHAT, b"{") is None


def test_a_chat_goes_on_from_its_last_message() -> None:
    """The rest of the request is the same, its limit less what was said."""
    way = continuation({**CHAT_BODY, "max_tokens": 10, "temperature": 0})
    assert way is not None
    sent = role() + chat("Hel") + chat("lo")
    assert way.feed(sent) == sent
    body = json.loads(way.follow_up() or b"")
    assert body["messages"] == [*CHAT_BODY["messages"], {"role": "assistant", "content": "Hello"}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert (body["max_tokens"], body["temperature"]) == (8, 0)
    rest = way.feed(role("b") + chat(" you", "b"))
    assert rest.count(b"data:") == 1
    data = json.loads(rest[6:])
    assert (data["id"], data["choices"][0]["delta"]) == ("a", {"content": " you"})


def test_a_completion_goes_on_behind_its_prompt() -> None:
    """Twice, if need be."""
    way = continuation({**TEXT_BODY, "max_tokens": 5})
    assert way is not None
    way.feed(text(" upon"))
    assert json.loads(way.follow_up() or b"") == {**TEXT_BODY, "prompt": "Once upon", "max_tokens": 4}
    way.feed(text(" a", "b"))
    assert json.loads(way.follow_up() or b"") == {**TEXT_BODY, "prompt": "Once upon a", "max_tokens": 3}


def test_what_was_only_begun_is_asked_for_again() -> None:
    """No text passed: the request itself, and its beginning is not told twice."""
    way = continuation(CHAT_BODY)
    assert way is not None
    way.feed(role())
    assert way.follow_up() == way.body
    assert way.feed(role("b")) == b""
    assert b"Hello" in way.feed(chat("Hello", "b"))


@pytest.mark.parametrize("mark", [b"\n\n", b"\r\n\r\n"])
def test_events_pass_whole_however_they_are_cut(mark: bytes) -> None:
    """A break never leaves half an event with the client."""
    way = continuation(CHAT_BODY)
    assert way is not None
    sent = (role() + chat("Hé") + b": ping\n\n" + chat("llo")).replace(b"\n\n", mark)
    passed = b""
    for place in range(len(sent) - 3):
        passed += way.feed(sent[place : place + 1])
        assert passed == b"" or passed.endswith(mark)
    assert "".join(way.text) == "Hé"
    assert passed + way.feed(sent[-3:]) == sent


@pytest.mark.parametrize(
    "last",
    [
        chat("", finish_reason="stop"),
        chat("", delta={"tool_calls": [{"index": 0}]}),
        chat("", delta={"reasoning_content": "hm"}),
        event({"error": {"message": "no"}}),
        b"data: [DONE]\n\n",
    ],
)
def test_after_more_than_text_there_is_no_going_on(last: bytes) -> None:
    """The end, tools, thoughts, an error: what follows could not be joined to it."""
    way = continuation(CHAT_BODY)
    assert way is not None
    way.feed(chat("Hello"))
    assert way.feed(last) == last
    assert way.follow_up() is None


def test_a_spent_limit_leaves_nothing_to_ask_for() -> None:
    """The engine died between the last token and its finish."""
    way = continuation({**TEXT_BODY, "max_tokens": 1})
    assert way is not None
    way.feed(text(" upon"))
    assert way.follow_up() is None


def test_usage_counts_the_answer_as_one() -> None:
    """What was said before the break was no prompt of the client's."""
    way = continuation(CHAT_BODY)
    assert way is not None
    way.feed(role() + chat("a") + chat("b") + chat("c"))
    way.follow_up()
    usage = {"prompt_tokens": 13, "completion_tokens": 4, "total_tokens": 17}
    data = json.loads(way.feed(event({"id": "b", "choices": [], "usage": usage}))[6:])
    assert data["usage"] == {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}


def test_memory_is_bounded() -> None:
    """An event without end, and more text than is kept, pass as they come and are not gone on with."""
    way = continuation(CHAT_BODY)
    assert way is not None
    endless = b"data: " + b"x" * 300_000
    assert way.feed(endless) == endless
    assert way.follow_up() is None
    way = continuation(CHAT_BODY)
    assert way is not None
    for _ in range(5):
        way.feed(chat("y" * 1_000_000))
    assert way.follow_up() is None
