"""Block hashes by the engine's recipe, from general libraries (cbor2, pickle, hashlib, xxhash).

    key = H((parent key, (token ids), extra keys or None))        full blocks only

H is SHA-256 or xxh3_128 of the tuple's pickle (protocol 5) or canonical CBOR. The first parent is H(seed). It shares no
code with the router's hashes on purpose: two writings of one recipe can be held against each other.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cbor2
import xxhash

from replica.simengine.core.events import BlockKey

ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
_SEED_OF_SECURE_HASHES = "vllm-none-hash"

Hashed = tuple[tuple[str, ...], ...]
"""Tagged extra keys of one block, as they go into its hash: ("lora", name, path), ("cache_salt", salt)."""


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _canonical(value: object) -> bytes:
    return cbor2.dumps(value, canonical=True)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


_STEPS: dict[str, tuple[Callable[[object], bytes], Callable[[bytes], bytes]]] = {
    "sha256": (_pickled, _sha256),
    "sha256_cbor": (_canonical, _sha256),
    "xxhash": (_pickled, xxhash.xxh3_128_digest),
    "xxhash_cbor": (_canonical, xxhash.xxh3_128_digest),
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: its served name, its path, its number in the engine (from 1)."""

    name: str
    path: str
    number: int


class BlockHasher:
    """The hashes of one engine."""

    def __init__(self, algorithm: str, block_size: int, seed: str | None = None) -> None:
        """Fix the recipe.

        Args:
            algorithm: One of ALGORITHMS.
            block_size: Tokens a block.
            seed: What the engine would find in PYTHONHASHSEED. None: a literal of the engine's for sha256*, and
                32 random bytes (so hashes that no one else can compute) for xxhash*.
        """
        self.algorithm = algorithm
        self.block_size = block_size
        self._encode, self._digest = _STEPS[algorithm]
        root: str | bytes
        if seed is not None:
            root = seed
        elif algorithm.startswith("sha256"):
            root = _SEED_OF_SECURE_HASHES
        else:
            root = os.urandom(32)
        self.root = self.key(root)

    def key(self, value: object) -> BlockKey:
        """Hash any value that the encoding knows."""
        return self._digest(self._encode(value))

    def extend(self, keys: list[BlockKey], token_ids: Sequence[int], adapter: Adapter | None, salt: str | None) -> None:
        """Append the keys of the blocks that `token_ids` fills beyond those already in `keys`."""
        size = self.block_size
        encode, digest = self._encode, self._digest
        parent = keys[-1] if keys else self.root
        for start in range(len(keys) * size, len(token_ids) - size + 1, size):
            extra = hashed_extra_keys(adapter, salt, first=start == 0)
            parent = digest(encode((parent, tuple(token_ids[start : start + size]), extra)))
            keys.append(parent)


def hashed_extra_keys(adapter: Adapter | None, salt: str | None, *, first: bool) -> Hashed | None:
    """Return what goes into a block's hash beside its tokens: the adapter everywhere, the salt in block 0 alone."""
    if adapter is None and not (salt and first):
        return None
    keys: list[tuple[str, ...]] = []
    if adapter is not None:
        keys.append(("lora", adapter.name, adapter.path))
    if salt and first:
        keys.append(("cache_salt", salt))
    return tuple(keys)


def published_extra_keys(adapter: Adapter | None, salt: str | None, *, first: bool) -> tuple[str, ...] | None:
    """Return the same as events carry it: bare values, without tags and without the adapter's path."""
    keys = (adapter.name,) if adapter is not None else ()
    if salt and first:
        keys = (*keys, salt)
    return keys or None
