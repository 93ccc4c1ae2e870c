"""From a chat completion's body to the text that the engine tokenises. Follows vLLM 0.32 with transformers 5."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from router.request import bodies, messages, messages_api
from router.request.content_format import ContentFormat
from router.request.reasons import NotUnderstoodError, Reason
from router.request.render import ChatTemplate, Rendering

MAX_CHARS = 8 * 2**20
"""Longest text that is rendered and tokenised: two million tokens and a few seconds."""
DEFAULT, TOOL_USE, PROCESSOR = "default", "tool_use", "processor"
# Arguments of transformers' own function: a request's variables of these names never reach the template.
_NO_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
_REFUSED_VARIABLES = ("chat_template", "conversation", "messages", "return_assistant_tokens_mask", "tokenize")
_UNSET = (None, "auto")  # the engine treats a variable with one of these as not given
_PROBES = ("a", "b")  # put in a medium's place: what is the same before both does not depend on them


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the engine treats the chats of one API.

    Attributes:
        with_defaults: Whether its `--default-chat-template-kwargs` count.
        orders_calls: Whether the fields of tool calls get its own order, or come as they were sent.
    """

    with_defaults: bool = True
    orders_calls: bool = True


CHAT, POOLING, RESPONSES = Dialect(), Dialect(with_defaults=False), Dialect(orders_calls=False)


class Chat(Protocol):
    """A model's chat templates, wherever they run: `ChatRenderer` here, `IsolatedChat` in a process of its own."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """`bos_token`, `eos_token`... for the templates."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The engine's `--default-chat-template-kwargs`."""

    @property
    def max_chars(self) -> int:
        """Longest text that is rendered."""

    @property
    def source(self) -> str:
        """The text of all templates."""

    def merges_inline_system(self) -> bool:
        """Whether `/v1/messages` puts later system messages into the first."""

    def render(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> str:
        """Return the prompt's text."""

    def before_media(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> tuple[str, int]:
        """Return the text of a chat with media, and how much of it is sure to stand before the first."""


@dataclass(frozen=True, slots=True)
class _Call:
    """All that a template is called with."""

    template: ChatTemplate
    rendering: Rendering
    variables: Mapping[str, Any]


@dataclass(frozen=True)
class ChatRenderer:
    """Renders chats as one model's engine does. Safe to use from several threads.

    Attributes:
        templates: By name: `default`, `tool_use` (used when there are tools), `processor` (used when there are none).
        special_tokens: `bos_token`, `eos_token`... for the templates.
        defaults: The engine's `--default-chat-template-kwargs`.
        max_chars: Longest text that is rendered.
    """

    templates: Mapping[str, ChatTemplate]
    special_tokens: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_chars: int = MAX_CHARS

    def render(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> str:
        """Return the prompt's text.

        Args:
            body: Of a chat completion; its own `chat_template` is not looked at.
            dialect: How its API is treated.

        Raises:
            NotUnderstoodError: With the reason.
        """
        call = self._prepare(body, dialect, media=False)
        return call.template.render(call.rendering, call.variables, self.max_chars)

    def before_media(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> tuple[str, int]:
        """Return the text of a chat with images, sound or video, and how much of it is sure to stand before the first.

        The engine puts placeholders in for media whose text or number of tokens only the model's own processor knows.
        What stands before is found by putting two different texts in the first medium's place: up to where the
        results part, and part from what is printed for the medium, nothing depends on it.

        Returns:
            The text, and the number of its characters that are sure. Where the template takes strings, nothing is
            known after these, and the text ends with them.

        Raises:
            NotUnderstoodError: With the reason; MEDIA when nothing is sure.
        """
        try:
            call = self._prepare(body, dialect, media=True)
        except NotUnderstoodError as error:
            if error.reason is not Reason.MEDIA:
                raise
            return self._before_string_media(body, dialect)
        place, part = _first_medium(call.rendering.messages)
        whole = call.template.render(call.rendering, call.variables, self.max_chars)
        texts = [whole]
        for probe in _PROBES:
            content = list(call.rendering.messages[place]["content"])
            content[part] = {"type": "text", "text": probe}
            texts.append(self._with_content(call, place, content))
        return whole, common_chars(texts)

    def _before_string_media(self, body: Mapping[str, Any], dialect: Dialect) -> tuple[str, int]:
        """As `before_media` for templates that take strings: nothing of the first message with a medium is known."""
        items = body.get("messages")
        assert isinstance(items, list)  # noqa: S101 - for the type alone: its media were seen
        place = next(index for index, item in enumerate(items) if _has_medium(item))
        probes = [
            [*items[:place], *({**item, "content": probe} if _has_medium(item) else item for item in items[place:])]
            for probe in _PROBES
        ]
        texts = [self.render({**body, "messages": probe}, dialect) for probe in probes]
        before = texts[0][: common_chars(texts)]
        return before, len(before)

    def _with_content(self, call: _Call, place: int, content: list[Any]) -> str:
        changed = list(call.rendering.messages)
        changed[place] = {**changed[place], "content": content}
        rendering = Rendering(
            changed,
            call.rendering.tools,
            call.rendering.documents,
            call.rendering.add_generation_prompt,
            call.rendering.continue_final_message,
        )
        return call.template.render(rendering, call.variables, self.max_chars)

    def _prepare(self, body: Mapping[str, Any], dialect: Dialect, media: bool) -> _Call:
        given = body.get("chat_template_kwargs")
        given = {} if given is None else given
        if not isinstance(given, dict):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        if any(given.get(name) for name in _REFUSED_VARIABLES):
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        variables = _variables(body, given)
        if dialect.with_defaults and self.defaults:
            variables = {**self.defaults, **variables}
        tools = variables.get("tools") or messages.tools(body.get("tools"))
        documents = variables.get("documents")
        for items in (tools, documents):
            if items is not None and not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
                raise NotUnderstoodError(Reason.BAD_REQUEST)
        template = self._template(tools)
        conversation = messages.conversation(body.get("messages"), template.content_format, media, dialect.orders_calls)
        if not template.knows_developer and "developer" in [message["role"] for message in conversation]:
            conversation = messages.developer_as_system(conversation)
        rendering = Rendering(
            messages=conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=bodies.flag(body.get("add_generation_prompt"), default=True),
            continue_final_message=bodies.flag(body.get("continue_final_message"), default=False),
        )
        reach = {key: value for key, value in variables.items() if key in template.variables - _NO_VARIABLES}
        return _Call(template, rendering, {**self.special_tokens, **reach})

    @property
    def source(self) -> str:
        """The text of all templates."""
        return "\0".join(template.source for template in self.templates.values())

    def merges_inline_system(self) -> bool:
        """Whether `/v1/messages` puts later system messages into the first.

        Raises:
            NotUnderstoodError: TEMPLATE_ERROR.
        """
        return messages_api.merges_inline_system(self._used_sources())

    def _used_sources(self) -> list[str]:
        """Return the templates that are used without tools and with them."""
        used: list[str] = []
        choices: tuple[object, ...] = (None, [])
        for tools in choices:
            with contextlib.suppress(NotUnderstoodError):
                used.append(self._template(tools).source)
        return used

    def _template(self, tools: object) -> ChatTemplate:
        names = (PROCESSOR, DEFAULT) if tools is None else (TOOL_USE, DEFAULT)
        for name in names:
            if name in self.templates:
                return self.templates[name]
        raise NotUnderstoodError(Reason.NO_TEMPLATE)


def common_chars(texts: Sequence[str]) -> int:
    """Return how many of their first characters texts have in common."""
    first, last = min(texts), max(texts)
    return next((place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))


def _variables(body: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a request: its `chat_template_kwargs`, and the fields that override them."""
    effort = body.get("reasoning_effort")
    fields = {"documents": body.get("documents"), "reasoning_effort": effort}
    if effort is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = effort != "none"
    merged = {**given, **{key: value for key, value in fields.items() if value not in _UNSET}}
    return {key: value for key, value in merged.items() if value not in _UNSET}


def _first_medium(conversation: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the places of the first media part: message and part."""
    for place, message in enumerate(conversation):
        if isinstance(content := message["content"], list):
            for part, item in enumerate(content):
                if item["type"] in messages.MEDIA_TYPES:
                    return place, part
    raise NotUnderstoodError(Reason.MEDIA)  # merging system messages has dropped it


def _has_medium(item: Any) -> bool:
    try:
        messages.conversation([item], ContentFormat.STRING)
    except NotUnderstoodError as error:
        return error.reason is Reason.MEDIA
    return False
