"""From a request's path and body to a Prompt: the one entry of this package.

Never raises for what a client sends: what can't be read gets a reason, is forwarded and placed by load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from router.request import bodies
from router.request.model_text import ModelText, kept
from router.request.prompt import Kind, Prompt
from router.request.reasons import NotUnderstoodError, Reason

_KINDS = {"/v1/chat/completions": Kind.CHAT, "/v1/completions": Kind.COMPLETION}
_BYTES_PER_TOKEN = 4  # a usual figure for English text; only an estimate is made of it
_MAX_TOKENS = 1 << 21  # longer lists of ids are not hashed; no engine takes them


class PromptReader:
    """Reads prompts. Holds no state between requests, so it may be called from several threads."""

    def __init__(self, text_for: Callable[[str | None], ModelText | None]) -> None:
        """Make a reader.

        Args:
            text_for: From a model's or adapter's name (None: the request has none) to its tokenizer and templates;
                None when the router has none for it. Must be safe to call from several threads.
        """
        self._text_for = text_for

    def read(self, path: str, body: bytes) -> Prompt:
        """Return what the router understands of a request.

        Args:
            path: The request's path; a query string is ignored.
            body: The whole body as it was sent.
        """
        kind = _KINDS.get(path.partition("?")[0], Kind.OTHER)
        try:
            fields = bodies.parse(body)
        except NotUnderstoodError as error:
            reason = Reason.ENDPOINT if kind is Kind.OTHER else error.reason
            return Prompt(kind, None, False, None, len(body) // _BYTES_PER_TOKEN, reason=reason)
        prompt = _facts(kind, fields, len(body))
        try:
            self._understand(prompt, fields)
        except NotUnderstoodError as error:
            prompt.reason = error.reason
        except Exception:  # a fault of ours must not become the client's: the engine still gets the request
            prompt.reason = Reason.INTERNAL
        return prompt

    def _understand(self, prompt: Prompt, body: Mapping[str, Any]) -> None:
        """Fill in the token ids.

        Raises:
            NotUnderstoodError: With the reason why there are none.
        """
        if prompt.kind is Kind.OTHER:
            raise NotUnderstoodError(Reason.ENDPOINT)
        if not isinstance(body.get("cache_salt"), (str, type(None))):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        cut = _Cut(body)
        if prompt.kind is Kind.CHAT:
            ids = self._chat_ids(prompt.model, body, cut)
        else:
            ids, prompt.other_tokens = self._completion_ids(prompt.model, body, cut)
        if not ids:
            raise NotUnderstoodError(Reason.EMPTY)
        if len(ids) > _MAX_TOKENS:
            raise NotUnderstoodError(Reason.TOO_LONG)
        prompt.token_ids = ids
        prompt.tokens = len(ids)

    def _text(self, model: str | None) -> ModelText:
        text = self._text_for(model)
        if text is None:
            raise NotUnderstoodError(Reason.NO_MODEL if model is None else Reason.NO_TOKENIZER)
        return text

    def _chat_ids(self, model: str | None, body: Mapping[str, Any], cut: _Cut) -> list[int]:
        transfer = body.get("kv_transfer_params")
        if isinstance(transfer, dict) and transfer.get("prompt_token_ids") is not None:
            # A prefill stage's ids replace the messages, unless these hold media or are to be echoed. That form of
            # serving is placed by its own router.
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        text = self._text(model)
        special = bodies.flag(body.get("add_special_tokens"), default=False)
        return text.encode(text.render_chat(body), special, cut.tokens, cut.side)

    def _completion_ids(self, model: str | None, body: Mapping[str, Any], cut: _Cut) -> tuple[list[int], int]:
        if body.get("prompt_embeds") is not None:
            raise NotUnderstoodError(Reason.PROMPT_EMBEDS)
        if body.get("suffix") is not None:
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        first, others = _first(body.get("prompt"))
        estimate = sum(len(other) // (_BYTES_PER_TOKEN if isinstance(other, str) else 1) for other in others)
        if isinstance(first, list):
            return kept(first, cut.tokens, cut.side), estimate
        special = bodies.flag(body.get("add_special_tokens"), default=True)
        return self._text(model).encode(first, special, cut.tokens, cut.side), estimate


class _Cut:
    """`truncate_prompt_tokens` and `truncation_side` of a body."""

    __slots__ = ("side", "tokens")

    def __init__(self, body: Mapping[str, Any]) -> None:
        given = body.get("truncate_prompt_tokens")
        self.tokens = bodies.integer(given)
        self.side = bodies.text(body.get("truncation_side"))
        if given is not None and (self.tokens is None or self.tokens < -1):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        if self.tokens == -1:  # "to the model's length", which is the engine's to know
            raise NotUnderstoodError(Reason.UNSUPPORTED)


def _facts(kind: Kind, body: Mapping[str, Any], body_bytes: int) -> Prompt:
    options = body.get("stream_options")
    limit = body.get("max_completion_tokens") if kind is Kind.CHAT else None
    n = bodies.integer(body.get("n"))
    return Prompt(
        kind=kind,
        model=bodies.text(body.get("model")),
        stream=bodies.flag(body.get("stream"), default=False),
        token_ids=None,
        tokens=body_bytes // _BYTES_PER_TOKEN,
        salt=bodies.text(body.get("cache_salt")) or None,
        reads_cache=_reads_cache(kind, body),
        max_tokens=bodies.integer(body.get("max_tokens") if limit is None else limit),
        include_usage=isinstance(options, dict) and bodies.flag(options.get("include_usage"), default=False),
        n=n if n is not None and n > 0 else 1,
    )


def _reads_cache(kind: Kind, body: Mapping[str, Any]) -> bool:
    """Whether the engine may skip cached tokens: not when it is asked for the logprobs of the prompt."""
    if body.get("prompt_logprobs") is not None:
        return False
    if not bodies.flag(body.get("echo"), default=False):
        return True
    # An echoed chat asks for them always (its `top_logprobs` is 0 by default), a completion when it asks for any.
    return kind is not Kind.CHAT and body.get("logprobs") is None


def _first(prompt: object) -> tuple[str | list[int], list[str | list[int]]]:
    """Return the first prompt of a completion, and the others.

    A prompt is text or token ids, or a list of one of them. The first decides the place: all prompts of a batch go to
    one replica, and the engine computes them there in this order.
    """
    if isinstance(prompt, str):
        return prompt, []
    if not isinstance(prompt, list):
        raise NotUnderstoodError(Reason.EMPTY if prompt is None else Reason.BAD_REQUEST)
    if not prompt:
        raise NotUnderstoodError(Reason.EMPTY)
    if all(isinstance(item, str) for item in prompt):
        return prompt[0], prompt[1:]
    if all(isinstance(item, list) for item in prompt):
        lists = [bodies.token_ids(item) for item in prompt]
        if None in lists:
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        return prompt[0], prompt[1:]
    ids = bodies.token_ids(prompt)
    if ids is None:
        raise NotUnderstoodError(Reason.BAD_REQUEST)
    return ids, []
