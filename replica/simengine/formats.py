"""What completions and chats have in common: usage, and the frame of a streamed chunk."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any

import orjson

from replica.simengine.bodies import Ask
from replica.simengine.choices import Choice, Delta
from replica.simengine.settings import VERSION, Settings
from replica.simengine.text import Text

LOGPROB = -1.0
"""Every token's log-probability: there is no model to ask."""


class Format(ABC):
    """How one response is written.

    Attributes:
        choices: Its answers, in order.
    """

    kind: str
    chunk_kind: str

    def __init__(
        self, response_id: str, created: int, ask: Ask, choices: list[Choice], settings: Settings, text: Text
    ) -> None:
        self.choices = choices
        self._ask = ask
        self._settings = settings
        self._text = text
        self._id = response_id
        self._created = created
        self._model = ask.adapter.name if ask.adapter else settings.served[0]
        head = {"id": response_id, "object": self.chunk_kind, "created": created, "model": self._model}
        self._head = orjson.dumps(head)[:-1] + b',"choices":['
        self._streamed_cached_tokens: int | None = None

    @abstractmethod
    def opening(self) -> list[bytes]:
        """Return the chunks that come before the first token's."""

    @abstractmethod
    def choice_chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the `choices` entry for one token of one answer."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the response that is not streamed."""

    @abstractmethod
    def created_cache_tokens(self, choice: Choice) -> int | None:
        """Return prompt tokens newly cached, where this format reports them."""

    def chunk(self, choice: Choice, delta: Delta) -> bytes:
        """Return the chunk for one token."""
        if self._streamed_cached_tokens is None:
            self._streamed_cached_tokens = choice.request.cached_tokens or 0
        tail = b"]"
        if self._ask.usage_in_each:
            usage = self._counts(choice.request.prompt_tokens, choice.request.output_tokens)
            tail += b',"usage":' + orjson.dumps(usage | self._continuous_details())
        if delta.finish_reason is not None and not self._ask.include_usage:
            tail += b',"system_fingerprint":"' + fingerprint(self._settings).encode() + b'"'
        return self._head + orjson.dumps(self.choice_chunk(choice, delta)) + tail + b"}"

    def usage_chunk(self) -> bytes:
        """Return the chunk with the usage of the whole response, which comes last."""
        usage: dict[str, Any] = self._totals()
        if self._settings.cached_tokens_in_usage:
            details = {"cached_tokens": self._streamed_cached_tokens or 0}
            created = self.created_cache_tokens(self.choices[0])
            if created is not None:
                details["created_cache_tokens"] = created
            usage["prompt_tokens_details"] = details
        tail = {"usage": usage, "system_fingerprint": fingerprint(self._settings)}
        return self._head + b"]," + orjson.dumps(tail)[1:]

    def usage(self) -> dict[str, Any]:
        """Return the usage of a response that is not streamed. As in vLLM, cached tokens are the last answer's."""
        details = None
        if self._settings.cached_tokens_in_usage:
            last = self.choices[-1]
            details = {
                "cached_tokens": last.request.cached_tokens or 0,
                "created_cache_tokens": self.created_cache_tokens(last),
                "multimodal_tokens": None,
            }
        return {**self._totals(), "prompt_tokens_details": details, "completion_tokens_details": None}

    def token_text(self, token: int) -> str:
        """Return one token as text."""
        return self._text.decode([token])

    def _continuous_details(self) -> dict[str, Any]:
        return {}

    def _totals(self) -> dict[str, Any]:
        prompts = sum(len(ids) for ids in self._ask.prompts)
        return self._counts(prompts, sum(choice.request.output_tokens for choice in self.choices))

    @staticmethod
    def _counts(prompt: int, completion: int) -> dict[str, Any]:
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def fingerprint(settings: Settings) -> str:
    """Return the `system_fingerprint`: the release, and what the engine is made of in 8 hex digits."""
    made_of = repr((settings.model, settings.limits, settings.block_size, settings.algorithm))
    return f"vllm-{VERSION}-{hashlib.blake2b(made_of.encode(), digest_size=4).hexdigest()}"
