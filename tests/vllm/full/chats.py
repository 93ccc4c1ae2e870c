"""Bodies of chats, drawn at random: what clients send and a template prints."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.vllm.full.texts import text

Body = dict[str, Any]


def _value(rng: random.Random, depth: int = 2) -> Any:
    """Return any JSON value."""
    kind = rng.randrange(8 if depth else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, -7, 2**31, 10**17, 1.5, 2.0, 1e-7, 1e22])
    if kind == 6:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == 7:
        return _object(rng, depth - 1)
    return text(rng, rng.randint(0, 6))


def _object(rng: random.Random, depth: int = 2) -> Body:
    return {rng.choice(["place", "at", "Größe", "a b", "x", "items"]): _value(rng, depth) for _ in range(3)}


def _parts(rng: random.Random, content: str) -> list[Body]:
    cut = rng.randint(0, len(content))
    parts: list[Body] = [{"type": "text", "text": content[:cut]}, {"type": "text", "text": content[cut:]}]
    if rng.random() < 0.3:
        parts[0]["cache_control"] = {"type": "ephemeral"}
    return parts


def _content(rng: random.Random, words: int) -> Any:
    content = text(rng, words)
    return _parts(rng, content) if rng.random() < 0.4 else content


def _turns(rng: random.Random, mark: str, turns: int, words: int = 40) -> list[Body]:
    """Return a conversation that ends with the user's message."""
    result: list[Body] = [{"role": "user", "content": mark + text(rng, words)}]
    for _ in range(turns):
        result.append({"role": "assistant", "content": text(rng, rng.randint(1, words))})
        result.append({"role": "user", "content": _content(rng, rng.randint(1, words))})
    return result


def plain(rng: random.Random, mark: str) -> Body:
    """A system prompt and some turns."""
    system = [{"role": "system", "content": mark + text(rng, rng.randint(1, 120))}] if rng.random() < 0.7 else []
    return {"messages": system + _turns(rng, mark, rng.randint(0, 4))}


def roles(rng: random.Random, mark: str) -> Body:
    """Developers, several and late system messages, names, parts, null and missing content."""
    turns = _turns(rng, mark, rng.randint(1, 3))
    for _ in range(rng.randint(1, 3)):
        message = {"role": rng.choice(["system", "developer"]), "content": _content(rng, rng.randint(0, 30))}
        turns.insert(rng.choice([0, 0, rng.randint(0, len(turns))]), message)
    if rng.random() < 0.4:
        turns.insert(1, rng.choice([{"role": "assistant", "content": None}, {"role": "user", "content": []}]))
    if rng.random() < 0.5:
        rng.choice(turns)["name"] = rng.choice(["bob", "Zoë", ""])
    if rng.random() < 0.3:
        rng.choice(turns)["vendor_field"] = 1
    return {"messages": turns}


def _tools(rng: random.Random) -> list[Body]:
    found = []
    for name in rng.sample(["weather", "find_letter", "now", "süß"], rng.randint(1, 3)):
        function: Body = {"name": name, "parameters": {"type": "object", "properties": {"at": {"maximum": 1.50}}}}
        if rng.random() < 0.7:
            function = {"description": text(rng, 8), **function}
        if rng.random() < 0.3:
            function["strict"] = rng.choice([True, False])
        if rng.random() < 0.3:
            del function["parameters"]
        tool: Body = {"type": "function", "function": function}
        found.append(dict(reversed(list(tool.items()))) if rng.random() < 0.3 else tool)
    return found


def _arguments(rng: random.Random) -> str:
    """Return a call's arguments: mostly JSON, now and then what a model made that is none, or no object."""
    if rng.random() < 0.25:
        return rng.choice(["", "{", '{"place": "Zür', "[1, 2]", '"text"', "null", "{'a': 1}", '{"a": 1} trailing'])
    return json.dumps(_object(rng), ensure_ascii=rng.random() < 0.5)


def tools(rng: random.Random, mark: str) -> Body:
    """Tools, calls with good and bad arguments, and results."""
    turns = _turns(rng, mark, 0)
    for round_ in range(rng.randint(0, 3)):
        calls = []
        for number in range(rng.randint(1, 2)):
            function = {"name": rng.choice(["weather", "now"]), "arguments": _arguments(rng)}
            if rng.random() < 0.3:
                function = {"arguments": function["arguments"], "name": function["name"]}
            calls.append({"id": f"call_{round_}_{number}", "type": "function", "function": function})
        content = rng.choice([None, "", text(rng, 5)])
        turns.append({"role": "assistant", "content": content, "tool_calls": calls})
        for call in calls:
            turns.append({"role": "tool", "tool_call_id": call["id"], "content": _content(rng, 10)})
        if rng.random() < 0.4:
            turns.append({"role": "user", "content": text(rng, 10)})
    if rng.random() < 0.6:
        turns.insert(0, {"role": "system", "content": _content(rng, 15)})
    body: Body = {"messages": turns}
    if rng.random() < 0.85:
        body["tools"] = _tools(rng)
        if rng.random() < 0.3:
            body["tool_choice"] = rng.choice(["none", "auto"])
    return body


def reasoning(rng: random.Random, mark: str) -> Body:
    """Reasoning under both of its names, thinking inside the text, and an answer to be continued."""
    turns = _turns(rng, mark, rng.randint(1, 3), 25)
    for turn in turns[1::2]:
        kind = rng.randrange(5)
        if kind == 0:
            turn["reasoning"] = text(rng, 10)
        elif kind == 1:
            turn["reasoning_content"] = text(rng, 10)
        elif kind == 2:
            turn |= {"reasoning": text(rng, 4), "reasoning_content": text(rng, 4)}
        elif kind == 3:
            turn["content"] = f"<think>{text(rng, 6)}</think>\n\n{turn['content']}"
    body: Body = {"messages": turns}
    if rng.random() < 0.5:
        turns.append({"role": "assistant", "content": "So the letter " + text(rng, 6) + rng.choice(["x", "x ", "x\n"])})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def variables(rng: random.Random, mark: str) -> Body:
    """Variables of the template, documents, reasoning effort, no generation prompt."""
    body: Body = {"messages": _turns(rng, mark, rng.randint(0, 2))}
    if rng.random() < 0.6:
        body["documents"] = [{"title": text(rng, 2), "text": text(rng, 12)} for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.6:
        given = {"foo": _value(rng), "enable_thinking": rng.choice([True, False]), "date_string": "1 Jan 2026"}
        body["chat_template_kwargs"] = {name: given[name] for name in rng.sample(list(given), rng.randint(1, 3))}
    if rng.random() < 0.5:
        body["reasoning_effort"] = rng.choice(["none", "low", "medium", "high"])
    if rng.random() < 0.4:
        body["add_generation_prompt"] = False
    return body


def options(rng: random.Random, mark: str) -> Body:
    """Options that change what is kept of the prompt or whether it is read from the cache."""
    body = rng.choice([plain, roles, tools])(rng, mark)
    kind = rng.randrange(5)
    if kind == 0:
        body["truncate_prompt_tokens"] = rng.randint(40, 120)
        if rng.random() < 0.5:
            body["truncation_side"] = rng.choice(["left", "right"])
    elif kind == 1:
        body["add_special_tokens"] = rng.choice([True, False])
    elif kind == 2:
        body["prompt_logprobs"] = rng.choice([0, 1])
    elif kind == 3:
        body |= {"n": 2, "temperature": 0.9, "seed": 1}
    else:
        body |= {"logprobs": True, "top_logprobs": 1}
    return body


def responses(rng: random.Random, mark: str) -> Body:
    """`/v1/responses`: text or items, instructions, function calls, reasoning."""
    body: Body = {"instructions": text(rng, rng.randint(1, 40))} if rng.random() < 0.6 else {}
    if rng.random() < 0.3:
        return body | {"input": mark + text(rng, 80)}
    items: list[Body] = [{"role": "user", "content": mark + text(rng, 60)}]
    if rng.random() < 0.3:
        items.insert(0, {"role": "developer", "content": text(rng, 10)})
    for number in range(rng.randint(0, 2)):
        if rng.random() < 0.4:
            thought = [{"type": "reasoning_text", "text": text(rng, 8)}]
            items.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": thought})
        if rng.random() < 0.6:
            call_id, arguments = f"call_{number}", json.dumps(_object(rng), ensure_ascii=False)
            call = {"type": "function_call", "id": f"fc_{number}", "call_id": call_id}
            items.append(call | {"name": "weather", "arguments": arguments})
            items.append({"type": "function_call_output", "call_id": call_id, "output": text(rng, 10)})
        else:
            items.append({"role": "assistant", "content": text(rng, 10)})
        said = text(rng, 12)
        content: Any = [{"type": "input_text", "text": said}] if rng.random() < 0.5 else said
        items.append({"type": "message", "role": "user", "content": content})
    body["input"] = items
    if rng.random() < 0.5:
        body["tools"] = [{"type": "function", "name": "weather", "description": text(rng, 5), "parameters": {}}]
        body["tool_choice"] = "auto"
    if rng.random() < 0.3:
        body["reasoning"] = {"effort": rng.choice(["low", "high"])}
    return body


def messages(rng: random.Random, mark: str) -> Body:
    """`/v1/messages`: blocks, system, tool use and results, thinking."""
    turns: list[Body] = [{"role": "user", "content": mark + text(rng, 60)}]
    for number in range(rng.randint(0, 2)):
        blocks: list[Body] = []
        if rng.random() < 0.4:
            blocks.append({"type": "thinking", "thinking": text(rng, 8), "signature": "s"})
        blocks.append({"type": "text", "text": text(rng, 10)})
        answer: list[Body] = [{"type": "text", "text": text(rng, 8)}]
        if rng.random() < 0.6:
            use = {"type": "tool_use", "id": f"toolu_{number}", "name": "weather", "input": _object(rng)}
            blocks.append(use)
            result: Any = [{"type": "text", "text": text(rng, 6)}] if rng.random() < 0.5 else text(rng, 6)
            answer.insert(0, {"type": "tool_result", "tool_use_id": use["id"], "content": result})
        turns += [{"role": "assistant", "content": blocks}, {"role": "user", "content": answer}]
    body: Body = {"messages": turns}
    if rng.random() < 0.6:
        said = text(rng, 20)
        body["system"] = _parts(rng, said) if rng.random() < 0.5 else said
    if rng.random() < 0.5:
        schema = {"type": "object", "properties": {"place": {"type": "string"}}}
        body["tools"] = [{"name": "weather", "description": text(rng, 6), "input_schema": schema}]
    if rng.random() < 0.2:
        body["thinking"] = {"type": "disabled"}
    return body
