"""Bodies of chats in the order that Mistral's encoding takes them, drawn at random."""

from __future__ import annotations

import random
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
    """Tools. (Calls of tools in the conversation vLLM 0.32 answers with a 400: it hands on an iterator, not a list.)"""
    schema = {"type": "object", "properties": {"place": {"type": "string"}, "at": {"type": "integer"}}}
    functions = [
        {"name": name, "description": text(rng, 8), "parameters": schema}
        for name in rng.sample(["weather", "find_letter", "now"], rng.randint(1, 3))
    ]
    body = {**plain(rng, mark), "tools": [{"type": "function", "function": function} for function in functions]}
    return body | {"tool_choice": rng.choice(["auto", "none"])} if rng.random() < 0.3 else body
