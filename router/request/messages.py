"""Chat messages as the engine hands them to its template.

Follows vLLM 0.32: known fields only, parts joined or kept, tool-call arguments decoded, reasoning under both of its
names. What the engine would answer with a 400 is either read all the same (it is forwarded and harmless) or not
understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from router.request.content_format import ContentFormat
from router.request.reasons import NotUnderstoodError, Reason

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_SKIPPED_WHEN_NULL = ("text", "refusal")
# Media parts, and what a template that takes parts gets in their place.
_MEDIA_PARTS = {
    "audio_embeds": "audio",
    "audio_url": "audio",
    "image_embeds": "image",
    "image_pil": "image",
    "image_url": "image",
    "input_audio": "audio",
    "input_image": "image",
    "video_embeds": "video",
    "video_url": "video",
}
MEDIA_TYPES = frozenset(_MEDIA_PARTS.values())
"""The types of a template's media parts."""
# A text part keeps its other fields where the template gets parts. These are known fields, which are not "other".
_KNOWN_PART_FIELDS = frozenset(
    {
        "audio_embeds",
        "audio_url",
        "closed",
        "data",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "name",
        "prompt_cache_breakpoint",
        "refusal",
        "text",
        "thinking",
        "type",
        "uuid",
        "video_embeds",
        "video_url",
    }
)
# Some gateways put a line into the system prompt that differs in each request. The engine drops it, for its cache's
# sake, and so must we.
_DROPPED_SYSTEM_LINE = "x-anthropic-billing-header"
_PLAIN_ROLES = ("user", "assistant", "system")


def conversation(
    messages: object, content_format: ContentFormat, media: bool = False, orders_calls: bool = True
) -> list[dict[str, Any]]:
    """Return the `messages` of a body as the template gets them; the body's own objects are left as they are.

    Args:
        messages: The body's.
        content_format: What the template wants.
        media: Whether images, sound and video are let through: as parts of one of `MEDIA_TYPES`, with
            `ContentFormat.PARTS`.
        orders_calls: Whether the fields of tool calls get the engine's order; else they keep theirs.

    Raises:
        NotUnderstoodError: BAD_REQUEST, MEDIA or PROMPT_EMBEDS.
    """
    if not isinstance(messages, list):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    return [_message(message, content_format, media, orders_calls) for message in messages]


def _message(message: object, content_format: ContentFormat, media: bool, orders_calls: bool) -> dict[str, Any]:
    if type(message) is dict and len(message) == 2:
        # Most messages are a role and a text, and a conversation has many of them: they take the short way.
        role, content = message.get("role"), message.get("content")
        if type(content) is str and role in _PLAIN_ROLES and not content.startswith(_DROPPED_SYSTEM_LINE):
            if content_format is ContentFormat.PARTS:
                return {"role": role, "content": [{"type": "text", "text": content}]}
            return {"role": role, "content": content}
    return _any_message(message, content_format, media, orders_calls)


def _any_message(message: object, content_format: ContentFormat, media: bool, orders_calls: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    role = message["role"]
    result: dict[str, Any] = {"role": role, "content": _content(role, message.get("content"), content_format, media)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            result["tool_calls"] = _tool_calls(calls, orders_calls)
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        result["content"] = _tool_content(result["content"])
    for field in ("name", "task"):
        if isinstance(message.get(field), str):
            result[field] = message[field]
    if role == "developer":
        result["tools"] = _developer_tools(message.get("tools"))
    return result


def _developer_tools(tools: object) -> Any:
    """Return the tools of a developer's message with the engine's order of fields; they keep their unknown ones."""
    if not isinstance(tools, list):
        return None
    ordered = []
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(function := tool.get("function"), dict):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        function = in_order(function, ("name", "description", "parameters", "strict"))
        ordered.append(in_order({**tool, "function": function}, ("function", "type")))
    return ordered


def _content(role: str, content: object, content_format: ContentFormat, media: bool) -> Any:
    parts: Iterable[object]
    if content is None:
        parts = []
    elif isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        parts = content
    else:
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    read = [part for part in map(_part, parts) if part is not None]
    if any(part["type"] in MEDIA_TYPES for part in read) and not (media and content_format is ContentFormat.PARTS):
        # Into a string the engine puts its model's own placeholders, which are not known here.
        raise NotUnderstoodError(Reason.MEDIA)
    if role == "system":
        read = _without_dropped_line(read)
    if content_format is ContentFormat.PARTS:
        return read
    # The engine drops what is empty: two empty parts give no line.
    return "\n".join(filter(None, (part["text"] if part["type"] == "text" else part["name"] for part in read)))


def _part(part: object) -> dict[str, Any] | None:
    """Return a part as `{"type": "text", "text": ...}` with its unknown fields, a tool reference, a mark of one of
    `MEDIA_TYPES`, or nothing.
    """
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_PARTS:
        text = part.get(_TEXT_PARTS[kind])
        if text is None and kind in _SKIPPED_WHEN_NULL:
            return None
        if not isinstance(text, str):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        extra = {key: value for key, value in part.items() if key not in _KNOWN_PART_FIELDS}
        return {"type": "text", "text": text, **extra}
    if kind == "tool_reference" and isinstance(part.get("name"), str):
        return {"type": "tool_reference", "name": part["name"]}
    if kind == "prompt_embeds" or (kind is None and "prompt_embeds" in part):
        raise NotUnderstoodError(Reason.PROMPT_EMBEDS)
    if isinstance(kind, str) and kind in _MEDIA_PARTS:
        return {"type": _MEDIA_PARTS[kind]}
    if kind is None:
        for name, modality in _MEDIA_PARTS.items():
            if name in part:
                return {"type": modality}
    raise NotUnderstoodError(Reason.BAD_REQUEST)


def _without_dropped_line(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for part in parts:
        if part["type"] == "text" and part["text"].startswith(_DROPPED_SYSTEM_LINE):
            rest = part["text"].partition("\n")[2]
            if not rest:
                continue
            part = {**part, "text": rest}
        kept.append(part)
    return kept


def _tool_content(content: Any) -> Any:
    """Return a tool's result as a string, unless it holds something else than text."""
    if not isinstance(content, list) or any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _tool_calls(calls: object, orders_calls: bool) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    return [_tool_call(call, orders_calls) for call in calls]


def _tool_call(call: object, orders_calls: bool) -> dict[str, Any]:
    """Return a call with its fields in the engine's order (templates print them as they come) and decoded arguments."""
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    if not orders_calls:
        return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}
    ordered = in_order(function, ("arguments", "name"))
    ordered["arguments"] = _arguments(function.get("arguments"))
    return in_order({**call, "function": ordered}, ("id", "function", "type"))


def _arguments(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def in_order(fields: Mapping[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    """Return a dict with the named fields first, where they are there, and the others after them as they came."""
    return {key: fields[key] for key in first if key in fields} | dict(fields)


def developer_as_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages for a template that has no `developer` role: they become `system`.

    When a system message is then not the first, or not the only one, all are merged into the first place, parted by
    empty lines.
    """
    changed = [
        {key: value for key, value in {**message, "role": "system"}.items() if key != "tools"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    places = [place for place, message in enumerate(changed) if message["role"] == "system"]
    if places == [0]:
        return changed
    texts = [_plain(changed[place]["content"]) for place in places]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in changed if message["role"] != "system")]


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def tools(value: object) -> list[dict[str, Any]] | None:
    """Return a body's `tools` as the template gets them: known fields in order, with nulls for the optional ones.

    Raises:
        NotUnderstoodError: BAD_REQUEST when they are no tools.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    return [_tool(tool) for tool in value]


def _tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(given := tool.get("function"), dict):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    if not isinstance(given.get("name"), str):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    deferred = tool.get("defer_loading")
    function = {key: given.get(key) for key in ("name", "description", "parameters")}
    if given.get("strict") is not None:
        function["strict"] = given["strict"]
    inner = given.get("defer_loading")
    if inner is not None or deferred is not None:
        function["defer_loading"] = deferred if inner is None else inner
    result: dict[str, Any] = {"type": "function", "function": function}
    if deferred is not None:
        result["defer_loading"] = deferred
    return result


def list_of_messages(value: object) -> list[dict[str, Any]]:
    """Return a body's `messages` if they are a list of objects with roles.

    Raises:
        NotUnderstoodError: BAD_REQUEST when they are not.
    """
    if not isinstance(value, list):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
    return value


def text_parts_only(parts: list[Any]) -> None:
    """Check that a list of parts holds text alone.

    Raises:
        NotUnderstoodError: BAD_REQUEST, MEDIA or PROMPT_EMBEDS.
    """
    _content("user", parts, ContentFormat.STRING, media=False)
