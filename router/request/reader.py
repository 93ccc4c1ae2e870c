"""From a request's path and body to a Prompt: the one entry of this package.

Never raises for what a client sends: what can't be read gets a reason, is forwarded and placed by load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from router.request import bodies, messages_api, responses_api
from router.request.chat import POOLING, RESPONSES
from router.request.endpoints import ENDPOINTS, UNKNOWN, Endpoint, Shape
from router.request.memo import PromptMemo
from router.request.names import conversation_name
from router.request.prompt import Kind, Prompt
from router.request.reasons import NotUnderstoodError, Reason
from router.request.text import Text
from router.request.token_cache import TokenCache
from router.request.tokens import Keep, Tokens, TooMuchFreshError
from router.request.trail import trail_of_ids

_BYTES_PER_TOKEN = 4  # a usual figure for English text; only an estimate is made of it
_MAX_ESTIMATE_TOKENS = 16_384  # a body of pictures is no million tokens: a guess must not outweigh a whole fleet
_MAX_TOKENS = 1 << 21  # longer lists of ids are not hashed; no engine takes them
_READING_TASKS = ("embed", "classify")
_NO_CACHE = TokenCache(0)
_MOST_GLANCED_BYTES = 128 * 2**10  # to parse and render a body of this length takes half a millisecond


@dataclass(frozen=True, slots=True)
class _Way:
    """How a body is read: who hears of tokens known before, and how much text may be tokenised anew."""

    known: Callable[[Tokens], None] | None = None
    fresh_bytes: int | None = None


def _unknown_length(model: str | None) -> int | None:
    return None


class PromptReader:
    """Reads prompts. Holds no state between requests but a cache, so it may be called from several threads."""

    def __init__(
        self,
        text_for: Callable[[str | None], Text | None],
        max_model_len_for: Callable[[str | None], int | None] = _unknown_length,
        cache: TokenCache | None = None,
    ) -> None:
        """Make a reader.

        Args:
            text_for: From a model's or adapter's name (None: the request has none) to its tokenizer and templates;
                None when the router has none for it. Must be safe to call from several threads.
            max_model_len_for: From the same to the model's longest prompt and answer together, in tokens; None when it
                is unknown, or not the same at all replicas. Must be safe to call from several threads.
            cache: Where the chains of prompts that are given as ids are kept, and whole prompts; None: nowhere.
        """
        self._text_for = text_for
        self._max_model_len_for = max_model_len_for
        self._cache = cache or _NO_CACHE
        self.memo = PromptMemo(self._cache, text_for)
        self.tells_conversations = False
        """Whether prompts tell which conversation they are of."""

    def facts(self, path: str, body: bytes) -> Prompt:
        """Return what `read` would, without the prompt's tokens: for a request that can't wait for them."""
        endpoint = ENDPOINTS.get(path.partition("?")[0], UNKNOWN)
        try:
            return self._facts(endpoint, bodies.parse(body), len(body))
        except NotUnderstoodError as error:
            return _unreadable(endpoint, error, body)

    def read(self, path: str, body: bytes, drafted: Callable[[Prompt], None] | None = None) -> Prompt:
        """Return what the router understands of a request.

        Args:
            path: The request's path; a query string is ignored.
            body: The whole body as it was sent.
            drafted: Called with the prompt as soon as all but its tokens is known, and again with the tokens of its
                beginning where these were known before and others are not (then `reason` is DEADLINE). The first is
                the one that is returned: do not change it meanwhile.
        """
        path = path.partition("?")[0]
        return self._read(path, body, self.memo.key(path, body), drafted, None)

    def quick(self, path: str, body: bytes, inline_bytes: int) -> Prompt | None:
        """Return what `read` would if that takes a moment; None when it is work for a thread.

        Args:
            path: The request's path; a query string is ignored.
            body: The whole body as it was sent.
            inline_bytes: At most so much is tokenised anew; 0: nothing is, nor rendered.
        """
        path = path.partition("?")[0]
        key = self.memo.key(path, body)
        if key is not None:
            prompt = self.memo.find(key)
            if prompt is not None and (prompt.conversation is None) is not self.tells_conversations:
                return prompt
        if len(body) <= inline_bytes:
            return self._read(path, body, key, None, None)
        if not inline_bytes or len(body) > _MOST_GLANCED_BYTES:
            return None
        try:
            return self._read(path, body, key, None, inline_bytes)
        except TooMuchFreshError:
            return None

    def _read(
        self,
        path: str,
        body: bytes,
        key: bytes | None,
        drafted: Callable[[Prompt], None] | None,
        fresh_bytes: int | None,
    ) -> Prompt:
        endpoint = ENDPOINTS.get(path, UNKNOWN)
        try:
            fields = bodies.parse(body)
        except NotUnderstoodError as error:
            return _unreadable(endpoint, error, body)
        prompt = self._facts(endpoint, fields, len(body))
        way = _Way(None, fresh_bytes)
        if drafted is not None:
            drafted(prompt)
            way = _Way(partial(_draft, drafted, prompt), fresh_bytes)
        try:
            text = self._text_for(prompt.model)
            self._understand(prompt, fields, endpoint.shape, way)
        except TooMuchFreshError:
            raise
        except NotUnderstoodError as error:
            prompt.reason = error.reason
        except Exception:  # a fault of ours must not become the client's: the engine still gets the request
            prompt.reason = Reason.INTERNAL
        if key is not None and prompt.reason is None and _depends_on_body_alone(fields):
            self.memo.keep(key, prompt, text)
        return prompt

    def _facts(self, endpoint: Endpoint, fields: Mapping[str, Any], body_bytes: int) -> Prompt:
        prompt = _facts(endpoint, fields, body_bytes)
        if self.tells_conversations:
            prompt.conversation = conversation_name(fields)
        return prompt

    def _understand(self, prompt: Prompt, body: Mapping[str, Any], shape: Shape, way: _Way) -> None:
        """Fill in the token ids.

        Raises:
            NotUnderstoodError: With the reason why there are none.
        """
        if shape is Shape.UNKNOWN:
            raise NotUnderstoodError(Reason.ENDPOINT)
        if shape is Shape.NONE:
            prompt.tokens = 0
            raise NotUnderstoodError(Reason.NO_PROMPT)
        if not isinstance(body.get("cache_salt"), (str, type(None))):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        if shape is Shape.SCORING:
            raise NotUnderstoodError(Reason.SCORING)
        tokens = self._tokens(prompt, body, shape, way)
        if not tokens.ids:
            raise NotUnderstoodError(tokens.stopped or Reason.EMPTY)
        if len(tokens.ids) > _MAX_TOKENS:
            raise NotUnderstoodError(Reason.TOO_LONG)
        prompt.token_ids = tokens.ids
        prompt.tokens = max(len(tokens.ids), tokens.estimate)
        prompt.reason = tokens.stopped
        prompt.trail = tokens.trail
        prompt.render_s = tokens.render_s

    def _tokens(self, prompt: Prompt, body: Mapping[str, Any], shape: Shape, way: _Way) -> Tokens:
        if shape in (Shape.EMBEDDING, Shape.POOLING):
            return self._pooling(prompt, body, way)
        if shape is Shape.TEXT:
            if body.get("prompt_embeds") is not None:
                raise NotUnderstoodError(Reason.PROMPT_EMBEDS)
            if body.get("suffix") is not None:  # put in by code of the model's class, where it has any
                raise NotUnderstoodError(Reason.UNSUPPORTED)
            return self._texts(prompt, body, body.get("prompt"), self._keep(prompt, body, way))
        transfer = body.get("kv_transfer_params")
        if isinstance(transfer, dict) and transfer.get("prompt_token_ids") is not None:
            # A prefill stage's ids replace the messages, unless these hold media or are to be echoed. That form of
            # serving is placed by its own router.
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        if shape is Shape.RESPONSES:
            cut = {"truncate_prompt_tokens": None if body.get("truncation", "disabled") == "disabled" else -1}
            keep = self._keep(prompt, cut, way)
            text = self._text(prompt.model)
            return text.chat(responses_api.chat_body(body), add_special_tokens=True, keep=keep, dialect=RESPONSES)
        text = self._text(prompt.model)
        if shape is Shape.MESSAGES:
            chat = messages_api.chat_body(body, text.merges_inline_system, lambda: text.effort_without_thinking)
            return text.chat(chat, add_special_tokens=False, keep=Keep(known=way.known, fresh_bytes=way.fresh_bytes))
        special = bodies.flag(body.get("add_special_tokens"), default=False)
        return text.chat(body, special, self._keep(prompt, body, way))

    def _pooling(self, prompt: Prompt, body: Mapping[str, Any], way: _Way) -> Tokens:
        if body.get("padding") not in (None, "do_not_pad") or "data" in body:
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        keep = self._keep(prompt, body, _Way(None, way.fresh_bytes), default_side="right")
        given = body.get("input")
        conversations = body.get("messages")
        if conversations is None and isinstance(given, list) and given and isinstance(given[0], (dict, list)):
            first = given[0]
            if isinstance(first, dict) or (first and isinstance(first[0], dict)):
                conversations, given = given, None
        if conversations is None:
            return self._texts(prompt, body, given, keep)
        if given is not None or body.get("chat_template") is not None:
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        if isinstance(conversations, list) and conversations and isinstance(conversations[0], list):
            prompt.other_tokens = prompt.tokens * (len(conversations) - 1) // len(conversations)
            conversations = conversations[0]
        chat = {
            "messages": conversations,
            "chat_template_kwargs": body.get("chat_template_kwargs"),
            "add_generation_prompt": bodies.flag(body.get("add_generation_prompt"), default=False),
            "continue_final_message": body.get("continue_final_message"),
        }
        special = bodies.flag(body.get("add_special_tokens"), default=False)
        return self._text(prompt.model).chat(chat, special, keep, dialect=POOLING)

    def _texts(self, prompt: Prompt, body: Mapping[str, Any], given: object, keep: Keep) -> Tokens:
        first, others = _first(given)
        prompt.other_tokens = sum(len(other) // (_BYTES_PER_TOKEN if isinstance(other, str) else 1) for other in others)
        if isinstance(first, list):
            if keep.fresh_bytes is not None:
                raise TooMuchFreshError  # all of them have to be looked at
            ids = keep.of(first)
            return Tokens(ids, trail_of_ids(ids, self._cache))
        special = bodies.flag(body.get("add_special_tokens"), default=True)
        return self._text(prompt.model).tokens(first, special, keep)

    def _text(self, model: str | None) -> Text:
        text = self._text_for(model)
        if text is None:
            raise NotUnderstoodError(Reason.NO_MODEL if model is None else Reason.NO_TOKENIZER)
        return text

    def _keep(self, prompt: Prompt, body: Mapping[str, Any], way: _Way, default_side: str = "left") -> Keep:
        """Return `truncate_prompt_tokens` and `truncation_side` of a body."""
        given = body.get("truncate_prompt_tokens")
        tokens = bodies.integer(given)
        if given is not None and (tokens is None or tokens < -1):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        if tokens == -1:  # to the model's length; one token of it is left for the answer when it has a limit
            longest = self._max_model_len_for(prompt.model)
            if longest is None:
                raise NotUnderstoodError(Reason.UNSUPPORTED)
            tokens = longest - 1 if prompt.max_tokens and prompt.kind is not Kind.POOLING else longest
        side = bodies.text(body.get("truncation_side"))
        return Keep(tokens, side, default_side, way.known, way.fresh_bytes)


def _depends_on_body_alone(body: Mapping[str, Any]) -> bool:
    """Whether a prompt depends on nothing but its body and its model's text."""
    cut = body.get("truncate_prompt_tokens") is not None or body.get("truncation", "disabled") != "disabled"
    return not cut and not body.get("chat_template")


def _draft(drafted: Callable[[Prompt], None], prompt: Prompt, known: Tokens) -> None:
    tokens = max(known.estimate, len(known.ids))
    drafted(replace(prompt, token_ids=known.ids, tokens=tokens, trail=known.trail, reason=known.stopped))


def _facts(endpoint: Endpoint, body: Mapping[str, Any], body_bytes: int) -> Prompt:
    options = body.get("stream_options")
    limit = next((body[name] for name in endpoint.limit_fields if body.get(name) is not None), None)
    n = bodies.integer(body.get("n"))
    tells = endpoint.shape in (Shape.RESPONSES, Shape.MESSAGES)  # their streams end with the usage, asked or not
    return Prompt(
        kind=endpoint.kind,
        model=bodies.text(body.get("model")),
        stream=bodies.flag(body.get("stream"), default=False),
        token_ids=None,
        tokens=_estimate(body_bytes),
        salt=bodies.text(body.get("cache_salt")) or None,
        reads_cache=_reads_cache(endpoint.shape, body),
        max_tokens=bodies.integer(limit),
        priority=bodies.integer(body.get("priority")),
        include_usage=tells or (isinstance(options, dict) and bodies.flag(options.get("include_usage"), default=False)),
        n=n if n is not None and n > 0 else 1,
    )


def _reads_cache(shape: Shape, body: Mapping[str, Any]) -> bool:
    """Whether the engine may skip cached tokens: not where it needs the model's output at every token."""
    if shape is Shape.POOLING:
        # The other tasks give a vector for each token. Without a task it is the model's own, which is not known here.
        return body.get("task") in _READING_TASKS
    if shape not in (Shape.CHAT, Shape.TEXT):
        return True
    if body.get("prompt_logprobs") is not None:
        return False
    if not bodies.flag(body.get("echo"), default=False):
        return True
    # An echoed chat asks for them always (its `top_logprobs` is 0 by default), a completion when it asks for any.
    return shape is Shape.TEXT and body.get("logprobs") is None


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


def _unreadable(endpoint: Endpoint, error: NotUnderstoodError, body: bytes) -> Prompt:
    reason = Reason.ENDPOINT if endpoint.shape is Shape.UNKNOWN else error.reason
    return Prompt(endpoint.kind, None, False, None, _estimate(len(body)), reason=reason)


def _estimate(body_bytes: int) -> int:
    return min(body_bytes // _BYTES_PER_TOKEN, _MAX_ESTIMATE_TOKENS)
