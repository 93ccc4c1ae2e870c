"""Block hashes against those of the engine's own library."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from replica.simengine.core.hashing import (
    Adapter,
    BlockHasher,
    hashed_extra_keys,
    published_extra_keys,
)


def library_vectors(golden: Path) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((golden / "vectors" / "vllm-0.32-hashes.json").read_text())["lib"]
    return vectors


def deep_tuple(value: Any) -> Any:
    """Lists as tuples, equal strings as one object (pickle tells the difference), embeddings' digests as bytes."""
    if isinstance(value, list):
        if value and value[0] == "prompt_embeds":
            return ("prompt_embeds", bytes.fromhex(value[1]))
        return tuple(map(deep_tuple, value))
    return sys.intern(value) if isinstance(value, str) else value


def test_every_hash_of_the_library_is_reproduced_from_its_extra_keys(golden: Path) -> None:
    """Chains with adapters, salts, images and embeddings come out, bit for bit."""
    compared = 0
    for vector in library_vectors(golden):
        hasher = BlockHasher(vector["algo"], vector["block_size"], vector["pythonhashseed"])
        assert hasher.root.hex() == vector["none_hash"]
        size, parent = vector["block_size"], hasher.root
        for index, digest in enumerate(vector["block_hashes"]):
            tokens = tuple(vector["token_ids"][index * size : (index + 1) * size])
            parent = hasher.key((parent, tokens, deep_tuple(vector["extra_keys_hashed"][index])))
            assert parent.hex() == digest, (vector["name"], vector["algo"], index)
            compared += 1
    assert compared == 22 * 5


@pytest.mark.parametrize("name", ["lib_plain", "lib_salt", "lib_lora"])
def test_a_request_is_hashed_with_its_adapter_and_salt(golden: Path, name: str) -> None:
    """`extend` makes the same chains from a request's own facts."""
    for vector in (each for each in library_vectors(golden) if each["name"] == name):
        adapter = Adapter(*vector["lora"], 1) if vector["lora"] else None
        hasher = BlockHasher(vector["algo"], vector["block_size"], vector["pythonhashseed"])
        keys: list[bytes] = []
        hasher.extend(keys, vector["token_ids"], adapter, vector["cache_salt"])
        assert [key.hex() for key in keys] == vector["block_hashes"]


def test_a_chain_that_grows_equals_one_that_is_hashed_at_once() -> None:
    """Only the blocks that became full are hashed, and they come out the same."""
    hasher = BlockHasher("sha256_cbor", 4)
    tokens = list(range(23))
    grown: list[bytes] = []
    for end in range(len(tokens) + 1):
        hasher.extend(grown, tokens[:end], None, "salt")
    at_once: list[bytes] = []
    hasher.extend(at_once, tokens, None, "salt")
    assert grown == at_once
    assert len(grown) == 5


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_without_a_seed_the_fast_hashes_have_a_root_of_their_own_in_each_engine(algorithm: str) -> None:
    """Two engines share no block hash, two with one seed share them all."""
    assert BlockHasher(algorithm, 16).root != BlockHasher(algorithm, 16).root
    assert BlockHasher(algorithm, 16, "0").root == BlockHasher(algorithm, 16, "0").root
    assert len(BlockHasher(algorithm, 16).root) == 16


def test_what_is_published_is_untagged_and_lacks_the_adapters_path() -> None:
    """Events carry the bare adapter name on every block and the bare salt on block 0."""
    adapter = Adapter("ad", "/adapters/ad", 1)
    assert hashed_extra_keys(adapter, "s", first=True) == (("lora", "ad", "/adapters/ad"), ("cache_salt", "s"))
    assert published_extra_keys(adapter, "s", first=True) == ("ad", "s")
    assert published_extra_keys(adapter, "s", first=False) == ("ad",)
    assert hashed_extra_keys(None, "s", first=False) is None
    assert published_extra_keys(None, "s", first=False) is None
