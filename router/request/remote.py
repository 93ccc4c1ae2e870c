"""Where the router has no tokenizer of a model: what to ask a replica's own `/tokenize`, and what its answer means.

The seam only: asking takes a network, and is done by whoever has an event loop (`router.feeds.remote_tokenizer`). A
request is asked about once, before it is placed; without an answer in time it is placed by load.

`/tokenize` renders a chat as the chat API does, with differences that are made up for here (the chat API has fields
of its own for the reasoning effort and for documents, which go in as variables, and it alone knows reasoning by its
older name and text by all its types), and one that is not: the chats of gpt-oss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from router.request import bodies, messages, responses_api
from router.request.content_format import ContentFormat
from router.request.endpoints import ENDPOINTS, UNKNOWN, Shape
from router.request.prompt import Prompt
from router.request.reasons import NotUnderstoodError, Reason
from router.request.token_cache import TokenCache
from router.request.trail import trail_of_ids

PATH = "/tokenize"
MAX_IDS = 1 << 21
_ASKED_FOR = (Reason.NO_TOKENIZER, Reason.NO_TEMPLATE)
_SHAPES = (Shape.TEXT, Shape.CHAT, Shape.RESPONSES)
_ALSO_TEXT = ("input_text", "output_text")
_SAME_FIELDS = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
)


@dataclass(frozen=True, slots=True)
class Question:
    """What to send to a replica.

    Attributes:
        body: Of `POST /tokenize`, JSON.
    """

    body: bytes


class RemoteTokenizer(Protocol):
    """Asks replicas. Whoever calls it sets the deadline, by cancelling, and limits how many are asked at once."""

    async def ask(self, url: str, question: Question) -> bytes:
        """Return the body of a replica's answer, for `ids_in`; raises NotUnderstoodError when there is none."""


def may_ask(prompt: Prompt, path: str) -> bool:
    """Tell whether there may be a question about a prompt; costs nothing where it was understood."""
    if prompt.reason not in _ASKED_FOR:
        return False
    return ENDPOINTS.get(path.partition("?")[0], UNKNOWN).shape in _SHAPES


def question_for(prompt: Prompt, path: str, body: bytes) -> Question | None:
    """Return what to ask about a prompt that was not understood; None when it is of no use to ask.

    Args:
        prompt: As the reader left it.
        path: The request's path; a query string is ignored.
        body: The whole body as it was sent.
    """
    if not may_ask(prompt, path):
        return None
    try:
        fields = bodies.parse(body)
        shape = ENDPOINTS.get(path.partition("?")[0], UNKNOWN).shape
        if shape is Shape.TEXT:
            asked = _about_text(fields)
        elif shape is Shape.CHAT:
            asked = _about_chat(fields, special=bodies.flag(fields.get("add_special_tokens"), default=False))
        elif shape is Shape.RESPONSES and fields.get("truncation", "disabled") == "disabled":
            chat = responses_api.chat_body(fields)
            if any("tool_calls" in message for message in chat["messages"]):
                return None  # the chat API gives the fields of a call another order
            asked = _about_chat({"model": fields.get("model"), **chat}, special=True)
        else:
            return None
        return None if asked is None else Question(orjson.dumps(asked))
    except (NotUnderstoodError, TypeError, orjson.JSONEncodeError):
        return None


def take_answer(prompt: Prompt, token_ids: list[int], cache: TokenCache | None = None) -> None:
    """Put the ids that a replica answered into a prompt.

    Args:
        prompt: What was asked about.
        token_ids: The answer.
        cache: Where its chain is kept; None: nowhere.
    """
    if not token_ids:
        prompt.reason = Reason.EMPTY
        return
    prompt.token_ids = token_ids
    prompt.tokens = len(token_ids)
    prompt.reason = None
    prompt.trail = None if cache is None else trail_of_ids(token_ids, cache)


def ids_in(answer: bytes) -> list[int] | None:
    """Return the ids in the body of an answer of `/tokenize`; None when it has none."""
    try:
        fields = bodies.parse(answer)
    except NotUnderstoodError:
        return None
    tokens = fields.get("tokens")
    return bodies.token_ids(tokens) if isinstance(tokens, list) and len(tokens) <= MAX_IDS else None


def _about_text(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(item, str) for item in prompt):
        prompt = prompt[0]
    if not isinstance(prompt, str) or fields.get("truncate_prompt_tokens") is not None:
        return None
    special = bodies.flag(fields.get("add_special_tokens"), default=True)
    return {"model": fields.get("model"), "prompt": prompt, "add_special_tokens": special}


def _about_chat(fields: Mapping[str, Any], special: bool) -> dict[str, Any] | None:
    given = fields.get("chat_template_kwargs")
    if not isinstance(given, (dict, type(None))) or fields.get("truncate_prompt_tokens") is not None:
        return None
    messages.conversation(fields.get("messages"), ContentFormat.STRING)  # media would be fetched twice
    variables = dict(given or {})
    effort = fields.get("reasoning_effort")
    if effort is not None:
        variables.setdefault("enable_thinking", effort != "none")
        variables["reasoning_effort"] = effort
    if fields.get("documents") is not None:
        variables["documents"] = fields["documents"]
    asked = {name: fields[name] for name in _SAME_FIELDS if fields.get(name) is not None}
    asked["messages"] = [_renamed(message) for message in fields["messages"]]
    return {**asked, "add_special_tokens": special, "chat_template_kwargs": variables or None}


def _renamed(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in the words that `/tokenize` knows: one name for reasoning, one type for text."""
    renamed = message
    if message.get("reasoning_content") is not None:
        renamed = {name: value for name, value in message.items() if name != "reasoning_content"}
        if renamed.get("reasoning") is None:
            renamed["reasoning"] = message["reasoning_content"]
    if isinstance(parts := message.get("content"), list):
        renamed = {**renamed, "content": [_as_text(part) for part in parts]}
    return renamed


def _as_text(part: Any) -> Any:
    """Return a part as the engine takes it in the end; `/tokenize` refuses these types in some messages."""
    return {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in _ALSO_TEXT else part
