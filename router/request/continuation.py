"""A text stream that broke off can go on at another replica, from the text so far. Pure.

What is asked of the other one is the same request with the text so far as the prompt's end: for completions behind the
prompt, for chats as a last message that the engine continues (`continue_final_message`). Only where that is all there
is to it: one choice, plain text, no tools, no structured output, no log probabilities, nothing that counts tokens from
the answer's beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from router.request.bodies import flag, integer, parse
from router.request.reasons import NotUnderstoodError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_EVENT_BYTES = 256 * 1_024
MAX_TEXT_BYTES = 4 * 2**20
_DONE = b"[DONE]"
_UNABLE = (
    "tools", "functions", "tool_choice", "function_call", "response_format", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix",
    "continue_final_message", "return_token_ids", "return_tokens_as_token_ids", "use_beam_search", "min_tokens",
    "audio", "modalities", "prompt_embeds", "kv_transfer_params", "chat_template", "logits_processors",
    "truncate_prompt_tokens", "thinking_token_budget", "reasoning_effort",
)  # fmt: skip
"""Fields that, where they are set, make an answer more than a text that can be gone on with."""


@dataclass(slots=True)
class Continuation:
    """One stream that may be gone on with.

    Attributes:
        is_able: Whether it still can be: false for good once something passed that is more than text.
        text: What passed so far.
        pieces: Events with text that passed: as many tokens at least.
    """

    path: str
    body: bytes
    is_able: bool = True
    text: list[str] = field(default_factory=list)
    pieces: int = 0
    _text_bytes: int = 0
    _held: bytes = b""
    _identity: dict[str, Any] | None = None
    _resumed: bool = False
    _before: int = 0
    _begun: bool = False

    @classmethod
    def of(cls, path: str, body: bytes) -> Continuation | None:
        """Return one for a request whose stream can be gone on with; None for any other."""
        if path not in (CHAT, COMPLETIONS):
            return None
        try:
            data = parse(body)
        except NotUnderstoodError:
            return None
        if not flag(data.get("stream"), False) or (integer(data.get("n")) or 1) != 1:
            return None
        if (integer(data.get("best_of")) or 1) != 1 or any(data.get(name) not in (None, False) for name in _UNABLE):
            return None
        if path == COMPLETIONS:
            return cls(path, body) if isinstance(data.get("prompt"), str) else None
        plain = flag(data.get("add_generation_prompt"), True) and isinstance(data.get("messages"), list)
        return cls(path, body) if plain and data["messages"] else None

    # -- what passes --------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Take in bytes of the stream; return those that may pass: whole events, as they came.

        After `follow_up` the events bear the first answer's identity, and what was said already is left out.
        """
        data = self._held + data
        end = max(_behind(data, mark) for mark in (b"\n\n", b"\r\n\r\n"))
        self._held = data[end:]
        whole = data[:end]
        if len(self._held) > MAX_EVENT_BYTES:
            self.is_able = False
            whole, self._held = data, b""
        if not self.is_able and not self._resumed:
            return whole
        passed = []
        for event in _events(whole):
            passed.append(self._pass(event) if self._resumed else event)
            if not self._resumed:
                self._note(event)
        return b"".join(passed)

    def rest(self) -> bytes:
        """Return what was held when the stream ended as it should."""
        rest, self._held = self._held, b""
        return rest

    # -- going on -----------------------------------------------------------------------------------------------------

    def follow_up(self) -> bytes | None:
        """Return the body that asks for the rest, after the stream broke off; None when nothing can be asked."""
        self._held = b""
        if not self.is_able:
            return None
        data = parse(self.body)
        self._resumed = True
        self._before = self.pieces
        self._begun = self._identity is not None
        if not self.pieces:
            return self.body
        text = "".join(self.text)
        for name in ("max_tokens", "max_completion_tokens"):
            limit = integer(data.get(name))
            if limit is not None:
                if limit <= self.pieces:
                    return None
                data[name] = limit - self.pieces
        if self.path == COMPLETIONS:
            data["prompt"] += text
        else:
            data["messages"] = [*data["messages"], {"role": "assistant", "content": text}]
            data |= {"add_generation_prompt": False, "continue_final_message": True}
        return orjson.dumps(data)

    # -- events -------------------------------------------------------------------------------------------------------

    def _note(self, event: bytes) -> None:
        data = _data_of(event)
        if data is None:
            return
        if not isinstance(data, dict):
            self.is_able = False  # the end, or an error of the engine's
            return
        if self._identity is None:
            self._identity = {name: data[name] for name in ("id", "created") if name in data}
        self._take_text(data)

    def _take_text(self, data: dict[str, Any]) -> None:
        choices = data.get("choices")
        if not isinstance(choices, list) or "error" in data:
            self.is_able = False
            return
        for choice in choices:
            said = choice.get("text") if self.path == COMPLETIONS else (choice.get("delta") or {}).get("content")
            more = (choice.get("delta") or {}).keys() - {"role", "content"}
            ends = choice.get("index", 0) != 0 or choice.get("finish_reason")
            if ends or any(choice["delta"][name] for name in more):
                self.is_able = False
            if isinstance(said, str) and said:
                self.text.append(said)
                self.pieces += 1
                self._text_bytes += len(said)
        if self._text_bytes > MAX_TEXT_BYTES:
            self.is_able = False

    def _pass(self, event: bytes) -> bytes:
        data = _data_of(event)
        if not isinstance(data, dict):
            if data == _DONE:
                self.is_able = False
            return event
        data |= self._identity or {}
        if self._identity is None:
            self._identity = {name: data[name] for name in ("id", "created") if name in data}
        usage = data.get("usage")
        if isinstance(usage, dict) and self._before:
            self._add_up(usage)
        choices = data.get("choices") or []
        delta = choices[0].get("delta") if choices and isinstance(choices[0], dict) else None
        if self._begun and isinstance(delta, dict) and "role" in delta and not choices[0].get("finish_reason"):
            if not delta.get("content"):
                return b""  # the message's beginning was told
            del delta["role"]
        self._take_text(data)
        return b"data: " + orjson.dumps(data) + b"\n\n"

    def _add_up(self, usage: dict[str, Any]) -> None:
        """The text so far was a part of the answer, not of the prompt."""
        prompt, answer = integer(usage.get("prompt_tokens")), integer(usage.get("completion_tokens"))
        if prompt is None or answer is None:
            return
        usage["prompt_tokens"] = max(0, prompt - self._before)
        usage["completion_tokens"] = answer + self._before
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _behind(data: bytes, mark: bytes) -> int:
    at = data.rfind(mark)
    return at + len(mark) if at >= 0 else 0


def _events(whole: bytes) -> Iterable[bytes]:
    mark = b"\r\n\r\n" if b"\r\n\r\n" in whole else b"\n\n"
    for part in whole.split(mark):
        if part:
            yield part + mark


def _data_of(event: bytes) -> Any:
    """Return the JSON of an event; the bytes where it is none; None for a comment."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    joined = b"\n".join(lines)
    try:
        return orjson.loads(joined)
    except orjson.JSONDecodeError:
        return joined
