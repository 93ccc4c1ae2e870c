"""Token ids of a chat prompt, by the model's own template and tokenizer.

Apart from the router's code on purpose: what is computed here judges the router (see lru_bound.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from loadtest.workloads.text import load_tokenizer

Message = Mapping[str, str]


class ChatText:
    """Renders messages to token ids as the engine does."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self.tokenizer = tokenizer
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(template)

    @classmethod
    def load(cls, folder: Path) -> ChatText:
        """Read `tokenizer.json` and the chat template (a file, or `chat_template` in tokenizer_config.json).

        Raises:
            FileNotFoundError: One of them is missing.
        """
        tokenizer = load_tokenizer(folder)
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            return cls(tokenizer, template_file.read_text(encoding="utf-8"))
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
        if not isinstance(config.get("chat_template"), str):
            raise FileNotFoundError(f"no chat template in {folder}: chat_template.jinja is expected there")
        return cls(tokenizer, config["chat_template"])

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt's text, ready for the assistant's answer."""
        return self._template.render(messages=list(messages), tools=None, add_generation_prompt=True)

    def token_ids(self, conversations: Sequence[Sequence[Message]]) -> list[list[int]]:
        """Return the prompts' token ids, in order. The template writes the special tokens, so none are added."""
        texts = [self.render(messages) for messages in conversations]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text that is part of a message."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids
