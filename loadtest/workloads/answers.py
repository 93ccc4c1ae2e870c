"""Reads an answer of an OpenAI endpoint, line by line where it is streamed: text, usage, when the first token came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson


def chat_body(model: str, messages: list[dict[str, str]], answer_tokens: int, stream: bool = True) -> dict[str, Any]:
    """Return the body of a chat request that generates exactly `answer_tokens` tokens and reports usage."""
    return {
        "model": model,
        "messages": messages,
        **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
        "max_tokens": answer_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
    }


@dataclass(slots=True)
class StreamedAnswer:
    """What has arrived so far.

    Attributes:
        text: The answer's text.
        token_ids: The answer's token ids; empty where the engine does not send them.
        prompt_tokens: The engine's count; None until its usage came.
        completion_tokens: The engine's count; None until its usage came.
        cached_tokens: Prompt tokens found in the engine's cache; None where it does not say.
        error: An error that came inside the stream, or None.
        done: Whether the stream ended as it should, with [DONE].
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    done: bool = False

    def feed(self, line: bytes) -> bool:
        """Take one line of the event stream; tell whether it carried generated tokens."""
        line = line.strip()
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return False
        try:
            chunk = orjson.loads(data)
        except ValueError:
            self.error = "a chunk of the stream is not JSON"
            return False
        return self._take(chunk) if isinstance(chunk, dict) else False

    def take_whole(self, raw: bytes) -> bool:
        """Take an answer that was not streamed; tell whether it is one."""
        try:
            answer = orjson.loads(raw)
        except ValueError:
            return False
        if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
            return False
        self._take(answer)
        self.done = True
        return True

    def _take(self, chunk: dict[str, Any]) -> bool:
        if isinstance(chunk.get("error"), dict):
            self.error = str(chunk["error"].get("message", "error without a message"))
            return False
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = usage.get("prompt_tokens")
            self.completion_tokens = usage.get("completion_tokens")
            details = usage.get("prompt_tokens_details")
            self.cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else None
        carried = False
        for choice in chunk.get("choices") or ():
            ids = choice.get("token_ids") or ()
            delta = choice.get("delta") or choice.get("message") or {}
            piece = delta.get("content") or choice.get("text") or ""
            self.token_ids.extend(ids)
            self.text += piece
            carried = carried or bool(piece) or bool(ids)
        return carried
