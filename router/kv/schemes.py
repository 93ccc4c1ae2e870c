"""Hash schemes: what decides the hash of a block besides its tokens.

A scheme is algorithm, seed and block size. It belongs to a replica and is told by it (or by configuration): nothing in
this package reads the environment, so a router gives the same chain wherever it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import xxhash

from router.kv.encodings import cbor, pickled

DEFAULT_SEED = "vllm-none-hash"
"""The literal that vLLM (August 2026 and newer) seeds the cryptographic algorithms with, without PYTHONHASHSEED."""


class HashAlgorithm(StrEnum):
    """vLLM's `--prefix-caching-hash-algo`: a digest over an encoding.

    `sha256` and `xxhash` digest Python's pickle (protocol 5), the others canonical CBOR. SHA-256 gives 32 bytes,
    xxh3_128 gives 16.
    """

    SHA256 = "sha256"
    SHA256_CBOR = "sha256_cbor"
    XXHASH = "xxhash"
    XXHASH_CBOR = "xxhash_cbor"

    @property
    def uses_cbor(self) -> bool:
        """Whether the encoding is CBOR (else pickle)."""
        return self in (HashAlgorithm.SHA256_CBOR, HashAlgorithm.XXHASH_CBOR)

    @property
    def is_cryptographic(self) -> bool:
        """Whether the root is the fixed literal when the engine has no seed."""
        return self in (HashAlgorithm.SHA256, HashAlgorithm.SHA256_CBOR)

    @property
    def digest(self) -> Callable[[bytes], bytes]:
        """The function from encoded bytes to digest."""
        return _sha256 if self.is_cryptographic else xxhash.xxh3_128_digest


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data, usedforsecurity=False).digest()


class UnknownRootError(ValueError):
    """The root of a chain can't be known: `xxhash*` without a seed takes a random one in each engine process."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one unit names its blocks.

    Attributes:
        algorithm: Digest and encoding.
        block_size: Tokens a block, 1 or more.
        seed: The engine's PYTHONHASHSEED as it was set. None: it was not set, so the root comes from the engine's own
            literal for `sha256*` and from random bytes for `xxhash*`.
    """

    algorithm: HashAlgorithm
    block_size: int
    seed: str | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be 1 or more tokens, not {self.block_size}")

    @property
    def root_is_known(self) -> bool:
        """Whether `root` can be computed."""
        return self.seed is not None or self.algorithm.is_cryptographic

    def root(self) -> bytes:
        """Return the digest that stands for the parent of every first block (vLLM's NONE_HASH).

        Raises:
            UnknownRootError: For `xxhash*` without a seed.
        """
        return _root(self.algorithm, self.seed)


@lru_cache(maxsize=256)
def _root(algorithm: HashAlgorithm, seed: str | None) -> bytes:
    if seed is None:
        if not algorithm.is_cryptographic:
            raise UnknownRootError(f"{algorithm} without a seed has a random root in each engine process")
        seed = DEFAULT_SEED
    return algorithm.digest(cbor(seed) if algorithm.uses_cbor else pickled(seed))
