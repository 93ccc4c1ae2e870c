"""`/v1/responses` as the engine turns it into a chat: vLLM 0.32, for models whose chats have a template.

What depends on a response that the engine keeps (`previous_response_id`) is not known here. Tools other than functions
are not followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.request.reasons import NotUnderstoodError, Reason

_UNFINISHED = ("in_progress", "incomplete")


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat completion body that gives the same prompt.

    Raises:
        NotUnderstoodError: ENGINE_STATE, UNSUPPORTED or BAD_REQUEST.
    """
    if body.get("previous_response_id") is not None or body.get("previous_input_messages") is not None:
        raise NotUnderstoodError(Reason.ENGINE_STATE)
    if body.get("prompt") is not None:
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    given = body.get("input")
    messages: list[dict[str, Any]] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        conversation: list[dict[str, Any]] = []
        for item in given:
            _add(conversation, item)
        messages += conversation
    else:
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    continues = _continues(given)
    reasoning = body.get("reasoning")
    if not isinstance(reasoning, (dict, type(None))):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    return {
        "messages": messages,
        "tools": _tools(body.get("tools")),
        "reasoning_effort": None if reasoning is None else reasoning.get("effort"),
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
    }


def _continues(given: str | list[Any]) -> bool:
    """Whether the last item is an answer that was cut short, to be continued."""
    if isinstance(given, str) or not given or not isinstance(last := given[-1], dict):
        return False
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED


def _add(messages: list[dict[str, Any]], item: object) -> None:
    """Add an item to the conversation: as a message, or to the assistant's message before it."""
    if not isinstance(item, dict):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    kind, role = item.get("type"), item.get("role")
    before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "function_call":
        call = _call(item)
        if before is not None:
            before.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind == "reasoning":
        _join(messages, before, "reasoning", _reasoning(item))
    elif kind == "function_call_output":
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif kind in (None, "message") and role == "assistant":
        _join(messages, before, "content", _answer(item.get("content")))
    elif kind in (None, "message") and isinstance(role, str):
        messages.append(item)
    else:
        raise NotUnderstoodError(Reason.UNSUPPORTED)


def _join(messages: list[dict[str, Any]], before: dict[str, Any] | None, field: str, text: str) -> None:
    if before is not None and before.get(field) is None:
        before[field] = text
    else:
        messages.append({"role": "assistant", field: text})


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    texts = [item.get(name) for name in ("call_id", "name", "arguments")]
    if not all(isinstance(text, str) for text in texts):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    if item.get("namespace"):
        raise NotUnderstoodError(Reason.UNSUPPORTED)
    call_id, name, arguments = texts
    return {"id": call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return _text_of(parts[0], "text")
    return ""


def _answer(content: object) -> str:
    """Return the text of an assistant's message: of its first part, as the engine takes it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise NotUnderstoodError(Reason.UNSUPPORTED)
    return _text_of(content[0], "text")


def _text_of(part: object, field: str) -> str:
    if not isinstance(part, dict) or not isinstance(text := part.get(field), str):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    return text


def _tools(tools: object) -> list[dict[str, Any]] | None:
    """Return the tools in the form of chat completions; None where there are none."""
    if not tools:
        return None
    if not isinstance(tools, list):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise NotUnderstoodError(Reason.UNSUPPORTED)
    return [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}} for tool in tools
    ]
