"""Bodies for models that give vectors, drawn at random."""

from __future__ import annotations

import random
from typing import Any

from tests.vllm.full import chats
from tests.vllm.full.texts import ids, text

Body = dict[str, Any]


def one_text(rng: random.Random, mark: str) -> Body:
    """A text, with the tokenizer's special tokens or without."""
    body: Body = {"input": mark + text(rng, rng.randint(10, 200))}
    return body | {"add_special_tokens": rng.choice([True, False])} if rng.random() < 0.5 else body


def one_list_of_ids(rng: random.Random, mark: str) -> Body:
    """Ids, of lengths around the ends of blocks."""
    return {"input": ids(rng, rng.choice([31, 32, 33, 64, 65, rng.randint(2, 700)]))}


def several(rng: random.Random, mark: str) -> Body:
    """A list of texts or of lists of ids."""
    count = rng.randint(1, 3)
    if rng.random() < 0.5:
        return {"input": [mark + text(rng, rng.randint(40, 120)) for _ in range(count)]}
    return {"input": [ids(rng, rng.randint(70, 300)) for _ in range(count)]}


def chat(rng: random.Random, mark: str) -> Body:
    """A conversation, alone in `messages` or as the input."""
    messages = rng.choice([chats.plain, chats.roles])(rng, mark)["messages"]
    body: Body = {rng.choice(["messages", "input"]): messages}
    if rng.random() < 0.5:
        body["add_generation_prompt"] = True
    return body


def truncated(rng: random.Random, mark: str) -> Body:
    """A text or ids of which a part is kept."""
    given: Any = mark + text(rng, rng.randint(120, 260)) if rng.random() < 0.7 else ids(rng, rng.randint(210, 400))
    body: Body = {"input": given, "truncate_prompt_tokens": rng.randint(40, 200)}
    return body | {"truncation_side": rng.choice(["left", "right"])} if rng.random() < 0.5 else body


def task(rng: random.Random, mark: str) -> Body:
    """`/pooling`, of the whole prompt."""
    return {**rng.choice([one_text, one_list_of_ids])(rng, mark), "task": "embed"}


def each_token(rng: random.Random, mark: str) -> Body:
    """`/pooling`, a vector of each token, asked for or as the engine's only task."""
    body = rng.choice([one_text, one_list_of_ids])(rng, mark)
    return {**body, "task": "token_embed"} if rng.random() < 0.5 else body
