"""Block hashes: vLLM's chain, recomputed bit for bit.

`digest = H((parent digest, token ids, extra keys or None))` for each full block; the parent of the first is the
scheme's root. A block's identity in events and in the index is the last 8 bytes of its digest.

SHA-256 chains without media are hashed in C where that is built (`router/native/chain.c`), with the interpreter's lock
given up; tests hold it equal to what is here.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from router.kv.encodings import cbor, cbor_block_prefix, encoded_id, pickled
from router.kv.extra_keys import NO_EXTRA_KEYS, ExtraKeys
from router.kv.schemes import HashAlgorithm, Scheme
from router.native import core

_NO_KEYS = cbor(None)
_FOUR_IDS = (1, 2, 3, 4)
_PICKLED_END = b"N\x87\x94."
"""How the pickle of a block without extra keys ends: null, a tuple of three, memoised."""
_SLICE_BLOCKS = 256
"""Blocks hashed between two pauses: half a millisecond."""
_NATIVE = core("chain")
_NATIVE_BLOCK_TOKENS = 4096
_NATIVE_TAIL_BYTES = 8192
"""With larger blocks or extra keys a pickle has several frames, which the native core does not write."""


def chain_digests(
    token_ids: Sequence[int],
    scheme: Scheme,
    extra: ExtraKeys = NO_EXTRA_KEYS,
    after: tuple[int, bytes] | None = None,
    pause: Callable[[], None] | None = None,
) -> list[bytes]:
    """Return the whole digest of each full block of a prompt, first block first.

    Args:
        token_ids: The whole prompt, each id from 0 to 2^64 - 1.
        scheme: Algorithm, seed and block size.
        extra: LoRA, salt, media, prompt embeddings.
        after: How many of the first blocks are left out, being known, and the digest of the last of them (the scheme's
            root after none). None: none is left out.
        pause: Called between slices of the work: a thread that hashes lets others have the interpreter there.

    Raises:
        UnknownRootError: When the scheme's root can't be known.
    """
    blocks, parent = (0, scheme.root()) if after is None else after
    first = blocks * scheme.block_size
    if _is_for_native(scheme, extra):
        made = _native_chain(token_ids, scheme, extra, first, parent)
        if made is not None:
            return made
    if scheme.algorithm.uses_cbor:
        return _cbor_chain(token_ids, scheme, extra, first, parent, pause)
    return _pickle_chain(token_ids, scheme, extra, first, parent, pause)


def _is_for_native(scheme: Scheme, extra: ExtraKeys) -> bool:
    has_places = extra.media or extra.embeds
    return (
        _NATIVE is not None
        and scheme.algorithm.is_cryptographic
        and not has_places
        and scheme.block_size <= _NATIVE_BLOCK_TOKENS
    )


def _native_chain(
    token_ids: Sequence[int], scheme: Scheme, extra: ExtraKeys, first: int, parent: bytes
) -> list[bytes] | None:
    """Hash in C; None when a block has more extra keys than that takes."""
    size = scheme.block_size
    if len(token_ids) - first < size:
        return []
    digests: list[bytes] = []
    if extra.salt and first == 0:  # the salt is the first block's alone
        parent = extend_digest(parent, token_ids[:size], extra.for_block(0, size), scheme.algorithm)
        digests.append(parent)
        first = size
    keys = extra.for_block(first, first + size) if extra.lora is not None else None
    if scheme.algorithm.uses_cbor:
        tail = cbor(keys)
    else:
        tail = _PICKLED_END if keys is None else _pickled_tail(parent, keys)
    if len(tail) > _NATIVE_TAIL_BYTES:
        return None
    # As many bits for each as the core reads; what a tokenizer made has them already.
    ids = token_ids if isinstance(token_ids, array) else array("Q", token_ids[first:])
    start = first if ids is token_ids else 0
    digests += _NATIVE.sha256_chain(ids, start, size, parent, not scheme.algorithm.uses_cbor, tail)  # type: ignore[union-attr]
    return digests


def _pickled_tail(parent: bytes, keys: tuple[Any, ...]) -> bytes:
    """Return what a block's pickle has after its ids: the extra keys, whose places in the memo are always the same."""
    whole = pickled((parent, _FOUR_IDS, keys))
    return whole[len(pickled((parent, _FOUR_IDS, None))) - len(_PICKLED_END) :]


def _pickle_chain(
    token_ids: Sequence[int],
    scheme: Scheme,
    extra: ExtraKeys,
    first: int,
    parent: bytes,
    pause: Callable[[], None] | None,
) -> list[bytes]:
    digest = scheme.algorithm.digest
    digests: list[bytes] = []
    for start in range(first, len(token_ids) - scheme.block_size + 1, scheme.block_size):
        if pause is not None and digests and len(digests) % _SLICE_BLOCKS == 0:
            pause()
        end = start + scheme.block_size
        parent = digest(pickled((parent, tuple(token_ids[start:end]), extra.for_block(start, end))))
        digests.append(parent)
    return digests


def _cbor_chain(
    token_ids: Sequence[int],
    scheme: Scheme,
    extra: ExtraKeys,
    first: int,
    parent: bytes,
    pause: Callable[[], None] | None,
) -> list[bytes]:
    size = scheme.block_size
    whole = len(token_ids) // size * size
    if pause is None:
        return _cbor_slice(token_ids, scheme, extra, first, whole, parent)
    digests: list[bytes] = []
    for start in range(first, whole, _SLICE_BLOCKS * size):
        if digests:
            parent = digests[-1]
            pause()
        digests += _cbor_slice(token_ids, scheme, extra, start, min(whole, start + _SLICE_BLOCKS * size), parent)
    return digests


def _cbor_slice(
    token_ids: Sequence[int], scheme: Scheme, extra: ExtraKeys, first: int, whole: int, parent: bytes
) -> list[bytes]:
    size = scheme.block_size
    before_parent, before_ids = cbor_block_prefix(len(parent), size)
    ids = list(map(encoded_id, token_ids[first:whole]))
    bodies = [before_ids + b"".join(ids[start : start + size]) for start in range(0, whole - first, size)]
    if extra == NO_EXTRA_KEYS:
        ends = [_NO_KEYS] * len(bodies)
    else:
        ends = [cbor(extra.for_block(start, start + size)) for start in range(first, whole, size)]
    digests = []
    if scheme.algorithm.is_cryptographic:
        # The digest is called without the indirection of `algorithm.digest`: it is a fifth of the time here.
        sha256 = hashlib.sha256
        for body, keys in zip(bodies, ends, strict=True):
            parent = sha256(before_parent + parent + body + keys, usedforsecurity=False).digest()
            digests.append(parent)
        return digests
    digest = scheme.algorithm.digest
    for body, keys in zip(bodies, ends, strict=True):
        parent = digest(before_parent + parent + body + keys)
        digests.append(parent)
    return digests


def extend_digest(
    parent: bytes, token_ids: Sequence[int], extra_keys: tuple[Any, ...] | None, algorithm: HashAlgorithm
) -> bytes:
    """Return the digest of one block after `parent`.

    Args:
        parent: The parent's whole digest, or the scheme's root.
        token_ids: All ids of the block.
        extra_keys: The tagged keys, as `ExtraKeys.for_block` gives them; None when there are none.
        algorithm: Digest and encoding.
    """
    key = (parent, tuple(token_ids), extra_keys)
    return algorithm.digest(cbor(key) if algorithm.uses_cbor else pickled(key))


def block_hash(digest: bytes) -> int:
    """Return a block's identity: the last 8 bytes of its digest as a big-endian unsigned number."""
    return int.from_bytes(digest[-8:], "big")


def chain(
    token_ids: Sequence[int],
    scheme: Scheme,
    extra: ExtraKeys = NO_EXTRA_KEYS,
    pause: Callable[[], None] | None = None,
) -> list[int]:
    """Return the identities of a prompt's full blocks; arguments and errors as `chain_digests`."""
    return [block_hash(digest) for digest in chain_digests(token_ids, scheme, extra, pause=pause)]


def max_hit_tokens(prompt_tokens: int, block_size: int) -> int:
    """Return how many of a prompt's tokens the cache can serve at most: whole blocks, and never the last token.

    The engine computes at least one token of every prompt, since it needs that token's output.
    """
    return max(0, prompt_tokens - 1) // block_size * block_size
