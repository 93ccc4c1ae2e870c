"""What a model's text must be able to do for the reader, whichever tokenizer it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from router.request.chat import CHAT, Dialect
from router.request.tokens import ALL, Keep, Tokens


class Text(Protocol):
    """A model's own text, whatever its tokenizer: `ModelText` or `MistralText`.

    Attributes:
        max_chars: Longest text that is rendered or encoded.
        timeless: Whether the same body always gives the same tokens: no template asks for the time or for chance.
    """

    max_chars: int
    timeless: bool

    @property
    def merges_inline_system(self) -> bool:
        """Whether `/v1/messages` puts later system messages into the first."""

    @property
    def effort_without_thinking(self) -> str:
        """The reasoning effort that `/v1/messages` takes for thinking switched off."""

    def render_chat(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> str:
        """Return the prompt's text of a chat completion body."""

    def chat(
        self, body: Mapping[str, Any], add_special_tokens: bool, keep: Keep = ALL, dialect: Dialect = CHAT
    ) -> Tokens:
        """Return the tokens of a chat completion body."""

    def tokens(self, text: str, add_special_tokens: bool, keep: Keep = ALL) -> Tokens:
        """Return the tokens of a text."""

    def encode(
        self, text: str, add_special_tokens: bool, keep_tokens: int | None = None, keep_side: str | None = None
    ) -> list[int]:
        """Return the ids of `tokens`."""
