"""Messages: what is not text, and what must stay as it was sent."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from router.request import messages
from router.request.content_format import ContentFormat
from router.request.model_text import ModelText
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.request.reasons import NotUnderstoodError, Reason

USER = {"role": "user", "content": "AB\nCD"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1}'}}
MEDIA: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "http://example.test/v.mp4"}},
    {"type": "image_embeds", "image_embeds": "AAAA"},
    {"image_url": "http://example.test/i.png"},
]


def _read(text: ModelText, *chat: dict[str, Any], **fields: Any) -> Prompt:
    body = {"model": "m", "messages": list(chat), **fields}
    return PromptReader(lambda _: text).read("/v1/chat/completions", json.dumps(body).encode())


def test_text_parts_are_joined_by_newlines(tiny: ModelText) -> None:
    """Two text parts and the string with a newline between them are one prompt (HASH-08)."""
    parts = [{"type": "text", "text": "AB"}, {"type": "text", "text": "CD"}]
    assert _read(tiny, {"role": "user", "content": parts}).token_ids == _read(tiny, USER).token_ids


def test_empty_text_parts_give_no_line(tiny: ModelText) -> None:
    """Where the template takes strings, the engine drops empty parts before it joins them by newlines."""
    parts = [{"type": "text", "text": text} for text in ("", "AB", "", "CD", "")]
    assert _read(tiny, {"role": "user", "content": parts}).token_ids == _read(tiny, USER).token_ids
    nothing = _read(tiny, {"role": "user", "content": parts[::2]})
    assert nothing.token_ids == _read(tiny, {"role": "user", "content": ""}).token_ids


def test_null_content_with_tool_calls_is_counted(tiny: ModelText) -> None:
    """An assistant's turn that only calls a tool is part of the prompt (HASH-08)."""
    prompt = _read(tiny, USER, {"role": "assistant", "content": None, "tool_calls": [CALL]})
    assert prompt.tokens > _read(tiny, USER, {"role": "assistant", "content": None}).tokens


def test_system_parts_are_kept(tiny: ModelText) -> None:
    """A system prompt in parts is not lost (HASH-08)."""
    parts = [{"type": "text", "text": "be brief"}]
    whole = _read(tiny, {"role": "system", "content": "be brief"}, USER)
    assert _read(tiny, {"role": "system", "content": parts}, USER).token_ids == whole.token_ids


@pytest.mark.parametrize("part", MEDIA, ids=lambda part: str(part.get("type")))
def test_media_is_placed_by_load(part: dict[str, Any], tiny: ModelText) -> None:
    """A prompt with an image, sound or video is not understood, with the reason media."""
    prompt = _read(tiny, {"role": "user", "content": [{"type": "text", "text": "see"}, part]})
    assert (prompt.token_ids, prompt.reason) == (None, Reason.MEDIA)
    assert prompt.tokens > 0


def test_prompt_embeds_in_a_message(tiny: ModelText) -> None:
    """A part that holds embeddings has the reason prompt_embeds."""
    prompt = _read(tiny, {"role": "user", "content": [{"type": "prompt_embeds", "data": "AAAA"}]})
    assert prompt.reason is Reason.PROMPT_EMBEDS


@pytest.mark.parametrize(
    "message",
    [
        "text",
        None,
        {},
        {"role": 5, "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"a": 1}},
        {"role": "user", "content": [5]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "user", "content": [{"type": ["text"]}]},
        {"role": "user", "content": [{"type": "file", "file": {}}]},
        {"role": "assistant", "content": "x", "tool_calls": {"a": 1}},
        {"role": "assistant", "content": "x", "tool_calls": ["f"]},
        {"role": "assistant", "content": "x", "tool_calls": [{"type": "custom", "custom": {}}]},
        {"role": "developer", "content": "x", "tools": [5]},
    ],
)
def test_messages_of_wrong_types(message: object) -> None:
    """A message that the engine answers with a 400 is bad_request."""
    with pytest.raises(NotUnderstoodError) as error:
        messages.conversation([message], ContentFormat.STRING)
    assert error.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("tools", [{}, "f", [5], [{}], [{"function": 5}], [{"function": {"description": "d"}}]])
def test_tools_of_wrong_types(tools: object) -> None:
    """Tools that the engine answers with a 400 are bad_request."""
    with pytest.raises(NotUnderstoodError) as error:
        messages.tools(tools)
    assert error.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("content_format", ContentFormat)
def test_the_body_is_not_changed(content_format: ContentFormat) -> None:
    """Preparing messages leaves the body's own objects alone."""
    chat = [
        {"role": "developer", "content": [{"type": "text", "text": "x-anthropic-billing-header\nx", "a": 1}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
        {"role": "tool", "content": [{"type": "text", "text": "y"}], "tool_call_id": "c"},
    ]
    before = copy.deepcopy(chat)
    messages.developer_as_system(messages.conversation(chat, content_format))
    assert chat == before
