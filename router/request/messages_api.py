"""`/v1/messages` (Anthropic's API) as the engine turns it into a chat: vLLM 0.32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.request.reasons import NotUnderstoodError, Reason

_DROPPED_BLOCK = "x-anthropic-billing-header"  # a line that differs in each request; the engine drops it
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_PROBE = {"messages": [{"role": "user", "content": "Hi"}]}


def chat_body(body: Mapping[str, Any], merge_inline_system: bool, disabled_effort: Callable[[], str]) -> dict[str, Any]:
    """Return the chat completion body that gives the same prompt.

    Args:
        body: The request.
        merge_inline_system: Whether system messages among the others go to the front; see `merges_inline_system`.
        disabled_effort: Gives the effort that stands for thinking switched off; see `effort_without_thinking`.

    Raises:
        NotUnderstoodError: BAD_REQUEST or UNSUPPORTED.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    inline = [item for item in given if item.get("role") == "system"] if merge_inline_system else []
    system = "".join([_system_text(body.get("system")), *(_system_text(item.get("content")) for item in inline)])
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for item in given:
        _add(messages, item, merge_inline_system)
    return {
        "messages": messages,
        "tools": _tools(body.get("tools")),
        "reasoning_effort": _effort(body, disabled_effort),
        "chat_template_kwargs": body.get("chat_template_kwargs"),
    }


def merges_inline_system(sources: list[str]) -> bool:
    """Whether the engine merges later system messages into the first: one of the templates fails on them.

    The engine tries that in a plain environment, without the functions that templates usually have; so does this.
    """
    return not sources or any(_fails_on_later_system(source) for source in sources)


def _fails_on_later_system(source: str) -> bool:
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols],
        autoescape=False,  # prompts are no HTML
    )
    try:
        environment.from_string(source).render(messages=turns, add_generation_prompt=False)
    except jinja2.TemplateError:
        return True
    except Exception:  # an engine with such a template does not start
        raise NotUnderstoodError(Reason.TEMPLATE_ERROR) from None
    return False


def effort_without_thinking(render: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the effort that stands for thinking switched off: `low` where the template refuses or ignores `none`.

    Args:
        render: From a chat completion's body to its text.
    """
    try:
        without = render({**_PROBE, "reasoning_effort": "none"})
    except NotUnderstoodError:
        return "low"
    for effort in _EFFORTS:
        try:
            if render({**_PROBE, "reasoning_effort": effort}) == without:
                return "low"
        except NotUnderstoodError:
            continue
    return "none"


def _effort(body: Mapping[str, Any], disabled_effort: Callable[[], str]) -> object:
    thinking, output = body.get("thinking"), body.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return disabled_effort()
    return output.get("effort") if isinstance(output, dict) else None


def _system_text(content: object) -> str:
    """Return the text of a system prompt: its blocks joined with nothing between them."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block["text"] for block in _blocks(content) if _is_text(block) and not _is_dropped(block["text"]))


def _is_text(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _is_dropped(text: str) -> bool:
    return text.startswith(_DROPPED_BLOCK)


def _blocks(content: object) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    return content


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], merged: bool) -> None:
    role, content = item.get("role"), item.get("content")
    if role == "system":
        text = "" if isinstance(content, str) and _is_dropped(content) else _system_text(content)
        if text and not merged:
            messages.append({"role": "system", "content": text})
        return
    if role not in ("user", "assistant"):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    message = _message(messages, str(role), _blocks(content))
    if role == "assistant" or "content" in message:
        messages.append(message)


def _message(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message of blocks; tool results come before it, as messages of their own."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and block.get("source"):
            parts.append({"type": "image_url"})
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            messages += _tool_results(block)
        elif kind == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
        elif kind not in ("text", "image", "thinking", "redacted_thinking", "tool_reference"):
            raise NotUnderstoodError(Reason.UNSUPPORTED)
    message: dict[str, Any] = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        message["content"] = parts[0]["text"]
    elif parts:
        message["content"] = parts
    return message


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(block.get("id"), str) or not block["id"]:
        raise NotUnderstoodError(Reason.UNSUPPORTED)  # the engine makes one up, from its clock
    arguments = block.get("input")
    function = {"name": block.get("name") or "", "arguments": arguments if isinstance(arguments, dict) else {}}
    return {"id": block["id"], "type": "function", "function": function}


def _tool_results(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a tool's result as messages: its text, its images as a user's message, the tools that it names."""
    content, call_id = block.get("content"), block.get("tool_use_id") or ""
    texts, images, references = [], 0, []
    if isinstance(content, list):
        for item in content:
            if not isinstance(item, dict):
                continue
            if item.get("type") == "text":
                texts.append(item.get("text", ""))
            elif item.get("type") == "image":
                images += 1
            elif item.get("type") == "tool_reference" and (name := item.get("tool_name") or item.get("name")):
                references.append({"type": "tool_reference", "name": name})
    if not all(isinstance(text, str) for text in texts):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    text = content if isinstance(content, str) else "\n".join(texts)
    results: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": call_id, "content": text}]
    if images:
        results.append({"role": "user", "content": [{"type": "image_url"}] * images})
    if references:
        results.append({"role": "tool", "tool_call_id": call_id, "content": references})
    return results


def _tools(tools: object) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    converted = []
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(schema := tool.get("input_schema"), dict):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        function = {key: tool.get(key) for key in ("name", "description", "strict", "defer_loading")}
        function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
        converted.append({"type": "function", "function": function})
    return converted
