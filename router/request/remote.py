"""What a replica alone can tell of a prompt: what to ask it, and what its answer means.

Where the router has no tokenizer of a model, its own `/tokenize` is asked. Prompts with media, and what `/tokenize` has
no words for, are for its `/render` paths (`router.request.remote_render`).

The seam only: asking takes a network, and is done by whoever has an event loop (`router.feeds.remote_tokenizer`). A
request is asked about once, before it is placed; without an answer in time it is placed by what is known.

`/tokenize` renders a chat as the chat API does, with differences that are made up for here (the chat API has fields
of its own for the reasoning effort and for documents, which go in as variables, and it alone knows reasoning by its
older name and text by all its types), and one that is not: chats that the engine encodes by code of its own, as those
of gpt-oss (`OWN_ENCODING`). Only `/render` tells these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from router.kv.extra_keys import MediaItem
from router.request import bodies, messages, remote_render, responses_api
from router.request.content_format import ContentFormat
from router.request.endpoints import ENDPOINTS, UNKNOWN, Shape
from router.request.prompt import Prompt
from router.request.reasons import NotUnderstoodError, Reason
from router.request.token_cache import TokenCache
from router.request.trail import trail_of_ids

PATH = "/tokenize"
OWN_ENCODING = re.compile(r"gpt[-_ ]?oss", re.IGNORECASE)
"""Found in the names and paths of models whose chats `/tokenize` renders otherwise than the chat API does."""
MAX_IDS = 1 << 21
_ASKED_FOR = (Reason.NO_TOKENIZER, Reason.NO_MODEL, Reason.NO_TEMPLATE, Reason.MEDIA)
_SHAPES = (Shape.TEXT, Shape.CHAT, Shape.RESPONSES, Shape.MESSAGES)
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
        body: Of the `POST`, JSON.
        path: `/tokenize`, or one of `/render`.
    """

    body: bytes
    path: str = PATH

    @property
    def renders(self) -> bool:
        """Whether it is about more than ids: only engines with `--enable-scale-out` answer it."""
        return self.path != PATH


class NotServedError(NotUnderstoodError):
    """The replica has no such path."""

    def __init__(self) -> None:
        super().__init__(Reason.REMOTE_REFUSED)


class RemoteTokenizer(Protocol):
    """Asks replicas. Whoever calls it sets the deadline, by cancelling, and limits how many are asked at once."""

    async def ask(self, url: str, question: Question) -> bytes:
        """Return the body of a replica's answer, for `read_answer`; raises NotUnderstoodError when there is none."""


def may_ask(prompt: Prompt, path: str) -> bool:
    """Tell whether there may be a question about a prompt; costs nothing where it was understood."""
    if prompt.reason not in _ASKED_FOR:
        return False
    return ENDPOINTS.get(path.partition("?")[0], UNKNOWN).shape in _SHAPES


def question_for(prompt: Prompt, path: str, body: bytes, own_encoding: bool = False) -> Question | None:
    """Return what to ask about a prompt that was not understood; None when it is of no use to ask.

    Args:
        prompt: As the reader left it.
        path: The request's path; a query string is ignored.
        body: The whole body as it was sent.
        own_encoding: Whether the engine encodes the model's chats by code of its own.
    """
    if not may_ask(prompt, path):
        return None
    shape = ENDPOINTS.get(path.partition("?")[0], UNKNOWN).shape
    try:
        fields = bodies.parse(body)
        only_rendered = prompt.reason is Reason.MEDIA or (own_encoding and shape is not Shape.TEXT)
        asked = None if only_rendered else _tokenize_body(shape, fields)
        if asked is not None:
            return Question(orjson.dumps(asked))
        rendered = remote_render.question(shape, fields, len(body))
        return None if rendered is None else Question(*rendered)
    except (NotUnderstoodError, TypeError, orjson.JSONEncodeError):
        return None


def _tokenize_body(shape: Shape, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the body for `/tokenize` that gets the prompt's ids; None where there is none.

    Raises:
        NotUnderstoodError: BAD_REQUEST: the engine will refuse it anyway.
    """
    try:
        if shape is Shape.TEXT:
            return _about_text(fields)
        if shape is Shape.CHAT:
            return _about_chat(fields, special=bodies.flag(fields.get("add_special_tokens"), default=False))
        if shape is Shape.RESPONSES and fields.get("truncation", "disabled") == "disabled":
            chat = responses_api.chat_body(fields)
            if any("tool_calls" in message for message in chat["messages"]):
                return None  # the chat API gives the fields of a call another order
            return _about_chat({"model": fields.get("model"), **chat}, special=True)
    except NotUnderstoodError as error:
        if error.reason is not Reason.MEDIA:
            raise
    return None


def take_answer(
    prompt: Prompt, token_ids: list[int], cache: TokenCache | None = None, media: tuple[MediaItem, ...] = ()
) -> None:
    """Put the ids that a replica answered into a prompt.

    Args:
        prompt: What was asked about.
        token_ids: The answer.
        cache: Where its chain is kept; None: nowhere.
        media: The items among them.
    """
    if not token_ids:
        prompt.reason = Reason.EMPTY
        return
    prompt.token_ids = token_ids
    prompt.tokens = len(token_ids)
    prompt.media = media
    prompt.reason = None
    prompt.trail = None if cache is None or media else trail_of_ids(token_ids, cache)


def ids_in(answer: bytes) -> list[int] | None:
    """Return the ids in the body of an answer of `/tokenize`; None when it has none."""
    try:
        fields = bodies.parse(answer)
    except NotUnderstoodError:
        return None
    tokens = fields.get("tokens")
    return bodies.token_ids(tokens) if isinstance(tokens, list) and len(tokens) <= MAX_IDS else None


def read_answer(question: Question, answer: bytes) -> tuple[list[int], tuple[MediaItem, ...]] | None:
    """Return the ids in the body of an answer, and the media among them; None when it holds none that are usable."""
    if question.renders:
        return remote_render.answer(answer, MAX_IDS)
    token_ids = ids_in(answer)
    return None if token_ids is None else (token_ids, ())


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
    messages.conversation(fields.get("messages"), ContentFormat.STRING)  # of media /tokenize tells too little
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
