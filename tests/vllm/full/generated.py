"""Requests drawn from a seed: the same seed, plan and number always give the same bytes, so a failure replays.

Only requests that the engine answers with 200 are drawn. Each begins with words of its own somewhere, so that most of
its blocks are in no other request, and each family of requests comes several times in a run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.vllm.full import chats
from tests.vllm.full.texts import ids, text

Body = dict[str, Any]
MAX_MODEL_LEN = 4096


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        family: What it is about.
        path: Where it is sent.
        body: What the engine reads in `raw`.
        raw: The bytes that are sent.
        reads_cache: False when the engine, by its own rules, takes nothing from its cache for it.
        tokenize: Body for the engine's `/tokenize` that must give the same ids; None where that has no such options.
    """

    family: str
    path: str
    body: Body
    raw: bytes
    reads_cache: bool
    tokenize: Body | None

    @property
    def salt(self) -> str | None:
        """The `cache_salt` that holds."""
        salt = self.body.get("cache_salt")
        return None if salt is None else str(salt)

    @property
    def prompts(self) -> int:
        """How many prompts it holds."""
        prompt = self.body.get("prompt")
        return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1


def _completion_text(rng: random.Random, mark: str) -> Body:
    return {"prompt": mark + text(rng, rng.randint(10, 220))}


def _completion_ids(rng: random.Random, mark: str) -> Body:
    return {"prompt": ids(rng, rng.choice([1, 31, 32, 33, 63, 64, 65, 96, 128, rng.randint(2, 700)]))}


def _completion_lists(rng: random.Random, mark: str) -> Body:
    if rng.random() < 0.5:
        return {"prompt": [mark + text(rng, rng.randint(40, 120)) for _ in range(rng.randint(1, 3))]}
    return {"prompt": [ids(rng, rng.randint(70, 300)) for _ in range(rng.randint(1, 3))]}


def _completion_special(rng: random.Random, mark: str) -> Body:
    body = {"prompt": mark + text(rng, rng.randint(60, 160)), "add_special_tokens": rng.choice([True, False])}
    if rng.random() < 0.5:
        body |= {"n": 2, "temperature": 0.9, "seed": 1}
    return body


def _completion_truncated(rng: random.Random, mark: str) -> Body:
    body: Body = {"prompt": mark + text(rng, rng.randint(120, 260))}
    if rng.random() < 0.3:
        body["prompt"] = ids(rng, MAX_MODEL_LEN + rng.randint(1, 300))
        return body | {"truncate_prompt_tokens": -1}
    if rng.random() < 0.4:
        body["truncation_side"] = rng.choice(["left", "right"])
    if rng.random() < 0.3:
        body["add_special_tokens"] = False
    return body | {"truncate_prompt_tokens": rng.randint(65, 200)}


def _completion_logprobs(rng: random.Random, mark: str) -> Body:
    body: Body = {"prompt": mark + text(rng, rng.randint(60, 160))}
    kind = rng.randrange(4)
    if kind == 0:
        return body | {"prompt_logprobs": rng.choice([0, 2])}
    if kind == 1:
        return body | {"echo": True, "logprobs": rng.choice([0, 1]), "max_tokens": rng.choice([0, 1])}
    if kind == 2:
        return body | {"echo": True}
    return body | {"logprobs": 2}


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_TABLE: dict[str, tuple[str, Callable[[random.Random, str], Body]]] = {
    "completion-text": (COMPLETIONS, _completion_text),
    "chat-plain": (CHAT, chats.plain),
    "completion-ids": (COMPLETIONS, _completion_ids),
    "chat-roles": (CHAT, chats.roles),
    "completion-lists": (COMPLETIONS, _completion_lists),
    "chat-tools": (CHAT, chats.tools),
    "completion-special": (COMPLETIONS, _completion_special),
    "chat-reasoning": (CHAT, chats.reasoning),
    "completion-truncated": (COMPLETIONS, _completion_truncated),
    "chat-variables": (CHAT, chats.variables),
    "completion-logprobs": (COMPLETIONS, _completion_logprobs),
    "chat-options": (CHAT, chats.options),
    "responses": ("/v1/responses", chats.responses),
    "messages": ("/v1/messages", chats.messages),
}
FAMILIES = tuple(_TABLE)
"""Of every two neighbours in this order one is a chat: a run that is cut short has seen both."""


def generate(seed: str, plan: str, number: int, models: tuple[str, ...], block_size: int) -> Case:
    """Return request `number` of a plan.

    Args:
        seed: Of the whole run.
        plan: Name of the engine's set-up; two plans get different requests.
        number: From 0; it decides the family.
        models: The base model's name, then the adapters'.
        block_size: Of the engine, in tokens: an answer whose prompt's ids are only seen in events ends its block.
    """
    rng = random.Random(f"{seed}/{plan}/{number}")
    family = FAMILIES[number % len(FAMILIES)]
    path, draw = _TABLE[family]
    body = draw(rng, f"Letter {seed}-{plan}-{number}. ")
    model = models[0] if rng.random() < 0.6 else rng.choice(models)
    body = {"model": model, "temperature": 0, **body}
    if path in (COMPLETIONS, CHAT):
        body = {"max_tokens": rng.randint(1, 4), **body, "return_token_ids": True}
        if "n" not in body and _is_single(body) and "prompt_logprobs" not in body and rng.random() < 0.25:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
    elif path == "/v1/responses":
        body |= {"max_output_tokens": block_size + 2, "store": False}
    else:
        body |= {"max_tokens": block_size + 2}
    if rng.random() < 0.35:
        # An adapter's name as salt: equal texts, which pickle could write as one.
        body["cache_salt"] = rng.choice(["a", "tenant-7", "Größe 漢字 👍", "x" * 128, models[-1]])
    return Case(family, path, body, _encode(rng, body), _reads_cache(path, body), _tokenize(path, body))


def _is_single(body: Body) -> bool:
    return "messages" in body or not isinstance(body["prompt"], list) or isinstance(body["prompt"][0], int)


def _encode(rng: random.Random, body: Body) -> bytes:
    """Return JSON as different clients write it."""
    raw = json.dumps(body, ensure_ascii=rng.random() < 0.5, separators=rng.choice([(",", ":"), (", ", ": ")]))
    if "cache_salt" in body and rng.random() < 0.4:
        salt = json.dumps(body["cache_salt"])
        # Of equal keys the last one holds, however it is spelled.
        raw = '{"cache_salt": "not this one", ' + raw[1:-1] + ', "\\u0063ache_salt": ' + salt + "}"
    data = raw.encode()
    return b"\xef\xbb\xbf" + data if rng.random() < 0.05 else data


def _reads_cache(path: str, body: Body) -> bool:
    """By vLLM's documentation: logprobs of the prompt need the model's output at each of its tokens."""
    if body.get("prompt_logprobs") is not None:
        return False
    if not body.get("echo"):
        return True
    return path == COMPLETIONS and body.get("logprobs") is None


def _tokenize(path: str, body: Body) -> Body | None:
    if path == COMPLETIONS:
        prompt = body["prompt"]
        if "truncate_prompt_tokens" in body or not isinstance(prompt, str):
            return None
        fields: tuple[str, ...] = ("model", "prompt", "add_special_tokens")
    elif path == CHAT:
        if {"truncate_prompt_tokens", "documents", "reasoning_effort"} & set(body):
            return None
        if any("reasoning_content" in message for message in body["messages"]):
            return None  # the chat API renames it, /tokenize drops it
        fields = ("model", "messages", "tools", "add_generation_prompt", "continue_final_message")
        fields += ("add_special_tokens", "chat_template_kwargs")
    else:
        return None
    return {name: body[name] for name in fields if name in body}
