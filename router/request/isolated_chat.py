"""A model's own chat templates where they come from outside: rendered in a process that can be killed.

Compiling runs a part of a template already (jinja computes what is constant), so not even that is done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.request.chat import CHAT, MAX_CHARS, Dialect
from router.request.client_templates import MAX_SOURCE_CHARS, ClientTemplates
from router.request.encoders.encoder import TokenizerError
from router.request.reasons import NotUnderstoodError

CHECK_S = 10.0
"""Compiling takes milliseconds; a machine under load gets time."""


@dataclass(frozen=True)
class IsolatedChat:
    """`router.request.chat.Chat` by way of the process. Safe to use from several threads.

    Attributes:
        sources: Templates by name, as `ChatRenderer` has them.
        special_tokens: `bos_token`, `eos_token`... for the templates.
        process: Where they are rendered, one chat after another.
        defaults: The engine's `--default-chat-template-kwargs`.
        max_chars: Longest text that is rendered.
    """

    sources: Mapping[str, str]
    special_tokens: Mapping[str, str]
    process: ClientTemplates
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_chars: int = MAX_CHARS

    def check(self) -> None:
        """See that the templates can be compiled.

        Raises:
            TokenizerError: They can't, within size and time.
        """
        try:
            self.process.ask("check", self.sources, self, limit_s=CHECK_S)
        except NotUnderstoodError as error:
            bound = f" ({MAX_SOURCE_CHARS} characters at most)" if error.reason == "too_long" else ""
            raise TokenizerError(f"a chat template can't be used: {error.reason.value}{bound}") from None

    @property
    def source(self) -> str:
        """The text of all templates."""
        return "\0".join(self.sources.values())

    def merges_inline_system(self) -> bool:
        """Whether `/v1/messages` puts later system messages into the first. Raises NotUnderstoodError."""
        return bool(self.process.ask("merges_inline_system", self.sources, self)["merges"])

    def render(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> str:
        """Return the prompt's text. Raises NotUnderstoodError."""
        text: str = self.process.ask("render", self.sources, self, body, dialect)["text"]
        return text

    def before_media(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> tuple[str, int]:
        """Return the text of a chat with media, and how much is sure; see `ChatRenderer`. Raises NotUnderstoodError."""
        answer = self.process.ask("before_media", self.sources, self, body, dialect)
        return answer["text"], answer["chars"]
