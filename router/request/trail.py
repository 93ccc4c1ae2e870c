"""A tokenised prompt's way through the cache: which pieces it is made of, and its chain from what is known of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import xxhash

from router.kv.extra_keys import ExtraKeys, Lora
from router.kv.hashes import block_hash, chain_digests
from router.kv.schemes import Scheme
from router.request.token_cache import Link, TokenCache

_SEGMENT_TOKENS = 512
_IDS = 0  # no tokenizer has this namespace


@dataclass(frozen=True, slots=True)
class Trail:
    """The pieces of one prompt.

    Attributes:
        keys: For each piece a digest of it and of all before it.
        ends: For each piece the number of tokens up to its end.
        cache: Where links are looked up and kept.
    """

    keys: Sequence[bytes] = field(repr=False)
    ends: Sequence[int] = field(repr=False)
    cache: TokenCache = field(repr=False)

    def chain(
        self,
        token_ids: Sequence[int],
        scheme: Scheme,
        extra: ExtraKeys,
        pause: Callable[[], None] | None = None,
    ) -> list[int]:
        """Return the prompt's chain, as `router.kv.hashes.chain` does; only what is new is hashed.

        Args:
            token_ids: The prompt; at least as many as the last of `ends`.
            scheme: Algorithm, seed and block size.
            extra: LoRA and salt; neither media nor embeddings, whose places the keys say nothing of.
            pause: As `chain_digests` has it.

        Raises:
            UnknownRootError: When the scheme's root can't be known.
        """
        parent = scheme.root()
        variant = _variant(scheme, extra.lora, extra.salt)
        keys = [key + variant for key in self.keys]
        known = self.cache.links(keys)
        hashes: list[int] = []
        for link in known:
            hashes += link.hashes
        if known:
            parent = known[-1].digest
        size = scheme.block_size
        digests = chain_digests(token_ids, scheme, extra, after=(len(hashes), parent), pause=pause)
        before = len(hashes)
        hashes += map(block_hash, digests)
        fresh, start = [], before
        for key, end in zip(keys[len(known) :], self.ends[len(known) :], strict=True):
            blocks = end // size
            digest = digests[blocks - before - 1] if blocks > before else parent
            fresh.append((key, Link(hashes[start:blocks], digest)))
            start = blocks
        if fresh:
            self.cache.remember(fresh)
        return hashes


@lru_cache(maxsize=1024)
def _variant(scheme: Scheme, lora: Lora | None, salt: str | None) -> bytes:
    """Return a digest of what a chain depends on besides the tokens."""
    return xxhash.xxh3_128_digest(repr((scheme, lora, salt)).encode("utf-8", "surrogatepass"))


def follow(keys: Sequence[bytes], added: bytes) -> list[bytes]:
    """Return for each piece a digest of its key and of all before it.

    Args:
        keys: The pieces' own keys.
        added: What stands before the first piece.
    """
    digest = xxhash.xxh3_128_digest
    rolling, state = [], added
    for key in keys:
        state = digest(state + key)
        rolling.append(state)
    return rolling


def trail_of_ids(token_ids: Sequence[int], cache: TokenCache) -> Trail | None:
    """Return the trail of a prompt that was not tokenised by pieces: of its ids, segment by segment.

    To hash an id for a key costs a tenth of hashing it into a chain. None when the prompt is too short to gain.
    """
    whole = len(token_ids) // _SEGMENT_TOKENS * _SEGMENT_TOKENS
    if not whole or not cache.limit_bytes:
        return None
    ends = range(_SEGMENT_TOKENS, whole + 1, _SEGMENT_TOKENS)
    data = memoryview(array("Q", token_ids[:whole])).cast("B")
    keys = cache.keys((data[(end - _SEGMENT_TOKENS) * 8 : end * 8] for end in ends), _IDS)
    return Trail(follow(keys, b"\1"), ends, cache)
