"""A model's own text: its tokenizer and chat templates, as the engine uses them.

Follows what vLLM 0.32 does with transformers 5. Tokenizers that are Python code are not read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import xxhash

from router.request import messages_api
from router.request.chat import CHAT, Chat, Dialect, common_chars
from router.request.client_templates import ClientTemplates
from router.request.encoders.cutting import Cutter
from router.request.encoders.encoder import TextEncoder
from router.request.reasons import NotUnderstoodError, Reason
from router.request.token_cache import TokenCache
from router.request.token_ids import packed
from router.request.tokens import ALL, Keep, Tokens, TooMuchFreshError
from router.request.trail import Trail, follow

_CHARS_PER_TOKEN = 4  # a usual figure for English text; only an estimate is made of it
_TOKENS_PER_MEDIUM = 512  # a picture of middling size; only an estimate is made of it
_NOTHING_ADDED = b"\0"
# What jinja offers a template that is not the same each time.
_CHANGING = ("strftime_now", "random", "lipsum")
_numbers = itertools.count(1)


class ModelText:
    """Renders chats and encodes text as one model's engine does. Safe to use from several threads."""

    def __init__(
        self,
        encoder: TextEncoder,
        chat: Chat,
        cache: TokenCache | None = None,
        client_templates: ClientTemplates | None = None,
        followed: bool = True,
    ) -> None:
        """Put the parts together; `router.request.encoders.table.load` does it from a folder.

        Args:
            encoder: The tokenizer.
            chat: The chat templates.
            cache: Where tokenised text is kept; None: nowhere.
            client_templates: Renders the templates that requests bring; None: they are not run.
            followed: False for a model whose chats the engine encodes by code of its own: those are not rendered.
        """
        self.encoder = encoder
        self._chat = chat
        self._cache = cache or TokenCache(0)
        self._client_templates = client_templates
        self._followed = followed
        self._namespace = next(_numbers)
        self._cutter = Cutter(_cut_token(encoder, chat))
        self.max_chars = chat.max_chars
        self.timeless = not any(word in chat.source for word in _CHANGING)

    @cached_property
    def merges_inline_system(self) -> bool:
        """Whether `/v1/messages` puts later system messages into the first."""
        return self._chat.merges_inline_system()

    @cached_property
    def effort_without_thinking(self) -> str:
        """The reasoning effort that `/v1/messages` takes for thinking switched off."""
        return messages_api.effort_without_thinking(self.render_chat)

    def render_chat(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> str:
        """Return the prompt's text of a chat completion body.

        Args:
            body: The body.
            dialect: How its API is treated.

        Raises:
            NotUnderstoodError: With the reason.
        """
        if not self._followed:
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        source = body.get("chat_template")
        if not source:
            return self._chat.render(body, dialect)
        if self._client_templates is None or not isinstance(source, str):
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        return self._client_templates.render(source, body, self._chat)

    def chat(
        self, body: Mapping[str, Any], add_special_tokens: bool, keep: Keep = ALL, dialect: Dialect = CHAT
    ) -> Tokens:
        """Return the tokens of a chat completion body; those before the first medium where it has media.

        Raises:
            NotUnderstoodError: With the reason.
        """
        begun_s = time.perf_counter()
        try:
            text = self.render_chat(body, dialect)
        except NotUnderstoodError as error:
            if error.reason is not Reason.MEDIA or body.get("chat_template") or keep.tokens is not None:
                raise
            return self._before_media(body, add_special_tokens, dialect)
        render_s = time.perf_counter() - begun_s
        return replace(self.tokens(text, add_special_tokens, keep), render_s=render_s)

    def tokens(self, text: str, add_special_tokens: bool, keep: Keep = ALL) -> Tokens:
        """Return the tokens of a text.

        Args:
            text: The prompt.
            add_special_tokens: Whether the tokenizer's own BOS and the like are added.
            keep: Truncation.

        Raises:
            NotUnderstoodError: TOO_LONG, TOKENIZER_ERROR; BAD_REQUEST when not even the special tokens are kept;
                UNSUPPORTED when it can't be known what the tokenizer adds.
        """
        if len(text) > self.max_chars:
            raise NotUnderstoodError(Reason.TOO_LONG)
        added = self.encoder.added if add_special_tokens else None
        if add_special_tokens and added is None:
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        pieces = self._cutter.pieces(self.encoder.normalised(text))
        try:
            keys = self._cache.keys(map(str.encode, pieces), self._namespace)
        except UnicodeEncodeError:
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None
        ids = packed(added.before if added else ())
        state = _NOTHING_ADDED if added is None else xxhash.xxh3_128_digest(repr(added.before).encode())
        if keep.known is not None and keep.tokens is None:
            self._tell_known(keep.known, keys, state, added.before if added else (), len(text))
        if keep.fresh_bytes is not None:
            self._check_fresh(pieces, keys, keep.fresh_bytes)
        ends = []
        for piece_ids in self._cache.encode(pieces, keys, self.encoder.encode):
            ids.extend(piece_ids)
            ends.append(len(ids))
        if keep.tokens is None:
            ids.extend(added.after if added else ())
            return Tokens(ids, Trail(follow(keys, state), ends, self._cache))
        if keep.side is not None or added is None:
            return Tokens(keep.of([*ids, *added.after] if added else ids))
        before, after = list(added.before), list(added.after)
        room = keep.tokens - len(before) - len(after)
        if room < 0:
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        return Tokens([*before, *Keep(room, None, keep.default_side).of(ids[len(before) :]), *after])

    def _check_fresh(self, pieces: Sequence[str], keys: Sequence[bytes], most_bytes: int) -> None:
        fresh = sum(len(pieces[place].encode()) for place in self._cache.missing(keys))
        if fresh > most_bytes:
            raise TooMuchFreshError

    def _tell_known(
        self, known: Callable[[Tokens], None], keys: Sequence[bytes], state: bytes, before: Sequence[int], chars: int
    ) -> None:
        """Tell of the pieces at a text's beginning that need no work, where others do."""
        pieces = self._cache.known(keys)
        if not 0 < len(pieces) < len(keys):
            return
        ids, ends = packed(before), []
        for piece_ids in pieces:
            ids.extend(piece_ids)
            ends.append(len(ids))
        trail = Trail(follow(keys[: len(ends)], state), ends, self._cache)
        known(Tokens(ids, trail, Reason.DEADLINE, max(len(ids), chars // _CHARS_PER_TOKEN)))

    def encode(
        self, text: str, add_special_tokens: bool, keep_tokens: int | None = None, keep_side: str | None = None
    ) -> list[int]:
        """Return the ids of `tokens`."""
        return [*self.tokens(text, add_special_tokens, Keep(keep_tokens, keep_side)).ids]

    def _before_media(self, body: Mapping[str, Any], add_special_tokens: bool, dialect: Dialect) -> Tokens:
        """Return the tokens that are sure to stand before the first medium."""
        text, sure_chars = self._chat.before_media(body, dialect)
        # Normalising may join the last sure character with the next one.
        sure, text = self.encoder.normalised(text[:sure_chars]), self.encoder.normalised(text)
        sure_chars = common_chars((sure, text))
        # The tokens before a cut do not depend on what follows it; any other place could divide a token.
        cut = max((_last_start(text, token, sure_chars) for token in self.encoder.sure_tokens), default=0)
        if cut <= 0 or (add_special_tokens and self.encoder.added is None):
            raise NotUnderstoodError(Reason.MEDIA)
        tokens = self.tokens(text[:cut], add_special_tokens=False)
        before = list(self.encoder.added.before) if add_special_tokens and self.encoder.added else []
        estimate = len(before) + len(text) // _CHARS_PER_TOKEN + _TOKENS_PER_MEDIUM
        return Tokens([*before, *tokens.ids], None if before else tokens.trail, Reason.MEDIA, estimate)


def _cut_token(encoder: TextEncoder, chat: Chat) -> str | None:
    """Return the token to cut at: the one that the templates print in most places; each place to look for costs."""
    printed = chat.source
    counts = {token: printed.count(token) for token in encoder.sure_tokens}
    best = max(counts, key=lambda token: (counts[token], -printed.find(token)), default=None)
    if best is not None and not counts[best]:  # a template that prints none: perhaps by its variable
        return next((token for token in chat.special_tokens.values() if token in counts), best)
    return best


def _last_start(text: str, token: str, latest: int) -> int:
    """Return the last place, at most `latest`, where a token begins in a text; -1 when there is none."""
    return text.rfind(token, 0, latest + len(token))
