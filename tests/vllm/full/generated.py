"""Requests drawn from a seed: the same seed, plan and number always give the same bytes, so a failure replays.

Only requests that the engine answers with 200 are drawn. Each begins with words of its own somewhere, so that most of
its blocks are in no other request, and each family of requests comes several times in a run.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.vllm.engines import MODEL
from tests.vllm.full import chats, mistral, pictures, pooling
from tests.vllm.full.plans import Plan, Sends
from tests.vllm.full.texts import ids, text

Body = dict[str, Any]
SEED = os.environ.get("WARMROUTE_TEST_SEED") or secrets.token_hex(4)
"""Of this run: a new one each time, unless one is given to repeat a run."""
MAX_MODEL_LEN = 4096  # of the engines


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        family: What it is about.
        path: Where it is sent.
        body: What the engine reads in `raw`.
        raw: The bytes that are sent.
        reads_cache: False when the engine, by its own rules, takes nothing from its cache for it.
        told: For each prompt its ids where they are given, or the body for the engine's `/tokenize` that must give the
            same ids; empty where that has no such options.
    """

    family: str
    path: str
    body: Body
    raw: bytes
    reads_cache: bool
    told: tuple[Body | list[int], ...]

    @property
    def salt(self) -> str | None:
        """The `cache_salt` that holds."""
        salt = self.body.get("cache_salt")
        return None if salt is None else str(salt)

    @property
    def prompts(self) -> int:
        """How many prompts it holds."""
        return 1 if _is_single(self.body) else len(_given(self.body))


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
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
EMBEDDINGS, POOLING = "/v1/embeddings", "/pooling"
Draw = Callable[[random.Random, str], Body]
_TEXTS: dict[str, tuple[str, Draw]] = {
    "completion-text": (COMPLETIONS, _completion_text),
    "completion-ids": (COMPLETIONS, _completion_ids),
    "completion-lists": (COMPLETIONS, _completion_lists),
    "completion-special": (COMPLETIONS, _completion_special),
    "completion-truncated": (COMPLETIONS, _completion_truncated),
    "completion-logprobs": (COMPLETIONS, _completion_logprobs),
}
FAMILIES: dict[Sends, dict[str, tuple[str, Draw]]] = {
    Sends.TEXT: {
        **_TEXTS,
        "chat-plain": (CHAT, chats.plain),
        "chat-roles": (CHAT, chats.roles),
        "chat-tools": (CHAT, chats.tools),
        "chat-reasoning": (CHAT, chats.reasoning),
        "chat-variables": (CHAT, chats.variables),
        "chat-options": (CHAT, chats.options),
        "responses": (RESPONSES, chats.responses),
        "messages": (MESSAGES, chats.messages),
    },
    Sends.MISTRAL: {
        **_TEXTS,
        "chat-plain": (CHAT, mistral.plain),
        "chat-tools": (CHAT, mistral.tools),
    },
    Sends.PICTURES: {
        "chat-pictures": (CHAT, pictures.chat),
        "responses-pictures": (RESPONSES, pictures.responses),
        "messages-pictures": (MESSAGES, pictures.messages),
        "chat-plain": (CHAT, chats.plain),
    },
    Sends.INPUTS: {
        "embed-text": (EMBEDDINGS, pooling.one_text),
        "embed-ids": (EMBEDDINGS, pooling.one_list_of_ids),
        "embed-chat": (EMBEDDINGS, pooling.chat),
        "embed-several": (EMBEDDINGS, pooling.several),
        "embed-truncated": (EMBEDDINGS, pooling.truncated),
        "pooling-task": (POOLING, pooling.task),
    },
    Sends.TOKENS: {"pooling-tokens": (POOLING, pooling.each_token)},
}
"""Families of requests: where they are sent, and what draws them."""


def generate(seed: str, plan: Plan, number: int) -> Case:
    """Return request `number` of a plan; `seed` is the whole run's. The number decides the family.

    An answer whose prompt's ids are only seen in events is long enough to end the prompt's last block.
    """
    rng = random.Random(f"{seed}/{plan.name}/{number}")
    table, models = FAMILIES[plan.sends], (MODEL, *plan.adapters)
    family = list(table)[number % len(table)]
    path, draw = table[family]
    body = {"model": MODEL if rng.random() < 0.6 else rng.choice(models), **draw(rng, f"{seed}-{plan.name}-{number}. ")}
    if path in (COMPLETIONS, CHAT):
        body = {"max_tokens": rng.randint(1, 4), "temperature": 0, **body, "return_token_ids": True}
        if "n" not in body and _is_single(body) and "prompt_logprobs" not in body and rng.random() < 0.25:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
    elif plan.sends not in (Sends.INPUTS, Sends.TOKENS):
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        body |= {limit: plan.scheme.block_size + 2, "temperature": 0}
    if rng.random() < 0.35:
        # An adapter's name as salt: equal texts, which pickle could write as one.
        body["cache_salt"] = rng.choice(["a", "tenant-7", "Größe 漢字 👍", "x" * 128, models[-1]])
    return Case(family, path, body, _encode(rng, body), _reads_cache(path, body), _told(path, body))


def _given(body: Body) -> Any:
    return body.get("prompt", body.get("input"))


def _is_single(body: Body) -> bool:
    given = _given(body)
    return "messages" in body or not isinstance(given, list) or isinstance(given[0], (int, dict))


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
    """By vLLM's documentation: logprobs of the prompt, and vectors of each token, need the output at all of them."""
    if path == POOLING and body.get("task") != "embed":
        return False
    if body.get("prompt_logprobs") is not None:
        return False
    if not body.get("echo"):
        return True
    return path == COMPLETIONS and body.get("logprobs") is None


def _told(path: str, body: Body) -> tuple[Body | list[int], ...]:
    if path in (RESPONSES, MESSAGES) or {"truncate_prompt_tokens", "documents", "reasoning_effort"} & set(body):
        return ()
    given = _given(body)
    messages = body.get("messages") or (given if isinstance(given[0], dict) else None)
    if messages is None:
        prompts = [given] if _is_single(body) else given
        options = {name: body[name] for name in ("model", "add_special_tokens") if name in body}
        return tuple(prompt if isinstance(prompt, list) else {**options, "prompt": prompt} for prompt in prompts)
    if path == EMBEDDINGS or any("reasoning_content" in message for message in messages):
        return ()  # /tokenize adds the operator's variables, which embeddings lack; it drops what the chat API renames
    fields = ("model", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens")
    options = {name: body[name] for name in (*fields, "chat_template_kwargs") if name in body}
    return ({**options, "messages": messages},)
