"""Whole bodies that were read before: the same bytes to the same path give the same prompt.

Retries, evaluations that ask the same again, and clients that take several samples send a body more than once. Then
neither parsing nor rendering is needed: a digest of the body and a look-up, whatever its length.

Kept is only what depends on nothing but the body and the model's text, which is compared at each look-up; so a
tokenizer or template that was replaced, or an adapter that is another model's now, is never answered for by a former
one. Prompts of templates that ask for the time are not kept, nor those cut to a model's length, nor any that was not
understood to its end. Chains are kept by what they depend on besides: scheme, adapter with its path, salt, media.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from router.request.kept import KeptPrompt
from router.request.prompt import Prompt
from router.request.text import Text
from router.request.token_cache import TokenCache

MAX_BODY_BYTES = 4 * 2**20
"""Longer bodies are not kept: to take a digest of them would hold up the loop for a millisecond."""
_PROMPT_BYTES = 1_100  # a Prompt with its chains' table, without ids and chains (measured with tracemalloc)
_TOKEN_BYTES = 4
_ID_BYTES = 40  # a place in a list and a number: ids that came in the body
_BLOCK_BYTES = 44  # as in the chain's links, some of which may be gone
_BODIES = 1  # no tokenizer has this namespace


class PromptMemo:
    """Remembers prompts in a token cache, whose bound they share. Thread-safe.

    Attributes:
        hits, misses: Bodies that were asked for.
    """

    def __init__(self, cache: TokenCache, text_for: Callable[[str | None], Text | None]) -> None:
        self._cache = cache
        self._text_for = text_for
        self.hits = 0
        self.misses = 0

    def key(self, path: str, body: bytes) -> bytes | None:
        """Return what a body is kept under; None when it is not kept at all."""
        if len(body) > MAX_BODY_BYTES or not self._cache.limit_bytes:
            return None
        [key] = self._cache.keys((body,), _BODIES)
        return key + path.encode("utf-8", "replace")

    def find(self, key: bytes) -> Prompt | None:
        """Return the prompt of a body that was read before, for one more request."""
        kept = self._cache.find(key)
        if isinstance(kept, KeptPrompt) and self._text_for(kept.prompt.model) is kept.text:
            self.hits += 1
            return kept.prompt.again()
        self.misses += 1
        return None

    def keep(self, key: bytes, prompt: Prompt, text: Text | None) -> None:
        """Keep a prompt that was understood to its end; it is shared from now on by its chains alone.

        Args:
            text: What the model's text was before the prompt was read.
        """
        ids = prompt.token_ids
        if ids is None or prompt.media or (text is not None and not text.timeless):
            return
        if self._text_for(prompt.model) is not text:  # replaced meanwhile: it may have been read with either
            return
        kept = KeptPrompt(prompt.again(), text)
        cost = _PROMPT_BYTES + len(key) + len(ids) * (_TOKEN_BYTES if not isinstance(ids, list) else _ID_BYTES)
        self._cache.keep(key, kept, cost)
        # Weakly: the chains are the kept prompt's too, and what is forgotten must not wait for the garbage collector.
        held = weakref.ref(kept)
        prompt.chains.grown = lambda blocks: self._cache.grow(key, held(), blocks * _BLOCK_BYTES)
