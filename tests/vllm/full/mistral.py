"""Bodies of chats in the order that Mistral's encoding takes them, drawn at random."""

from __future__ import annotations

import json
import random
import string
from typing import Any

from tests.vllm.full.texts import text

Body = dict[str, Any]


def _content(rng: random.Random, words: int) -> Any:
    content = text(rng, words) + "."
    return [{"type": "text", "text": content}] if rng.random() < 0.3 else content


def _system(rng: random.Random, mark: str) -> list[Body]:
    return [{"role": "system", "content": mark + text(rng, rng.randint(1, 80))}] if rng.random() < 0.6 else []


def plain(rng: random.Random, mark: str) -> Body:
    """A system prompt and turns in their order."""
    turns: list[Body] = [{"role": "user", "content": mark + text(rng, 40)}]
    for _ in range(rng.randint(0, 4)):
        turns.append({"role": "assistant", "content": _content(rng, rng.randint(1, 40))})
        turns.append({"role": "user", "content": _content(rng, rng.randint(1, 40))})
    body: Body = {"messages": _system(rng, mark) + turns}
    if rng.random() < 0.2:
        turns.append({"role": "assistant", "content": "So the letter"})
        body = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False}
    return body


def tools(rng: random.Random, mark: str) -> Body:
    """Tools, calls with ids of nine characters, and results."""
    turns: list[Body] = [{"role": "user", "content": mark + text(rng, 40)}]
    for _ in range(rng.randint(0, 3)):
        calls: list[Body] = []
        for _ in range(rng.randint(1, 2)):
            arguments = json.dumps({"place": text(rng, 2), "at": rng.randint(0, 9)}, ensure_ascii=rng.random() < 0.5)
            name = "".join(rng.choices(string.ascii_letters + string.digits, k=9))
            calls.append({"id": name, "type": "function", "function": {"name": "weather", "arguments": arguments}})
        turns.append({"role": "assistant", "content": rng.choice([None, ""]), "tool_calls": calls})
        turns += [{"role": "tool", "tool_call_id": call["id"], "content": text(rng, 8) + "."} for call in calls]
        if rng.random() < 0.6:
            turns.append({"role": "assistant", "content": text(rng, 10) + "."})
            turns.append({"role": "user", "content": text(rng, 10) + "."})
    schema = {"type": "object", "properties": {"place": {"type": "string"}, "at": {"type": "integer"}}}
    function = {"name": "weather", "description": text(rng, 8), "parameters": schema}
    body: Body = {"messages": _system(rng, mark) + turns, "tools": [{"type": "function", "function": function}]}
    return body | {"tool_choice": rng.choice(["auto", "none"])} if rng.random() < 0.3 else body
