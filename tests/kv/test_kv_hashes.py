"""The chain against the engine's rule, written out: H((parent, ids, extra keys or None))."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router.kv.extra_keys import ExtraKeys, Lora, MediaItem
from router.kv.hashes import block_hash, chain, chain_digests, extend_digest, max_hit_tokens
from router.kv.schemes import HashAlgorithm, Scheme

VECTORS = json.loads((Path(__file__).parents[1] / "golden/vectors/vllm-0.32-hashes.json").read_text())


def _pickle(item: object) -> bytes:
    return pickle.dumps(item, protocol=5)


def _cbor(item: object) -> bytes:
    return cbor2.dumps(item, canonical=True)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


RULES: dict[HashAlgorithm, tuple[Callable[[bytes], bytes], Callable[[object], bytes]]] = {
    HashAlgorithm.SHA256: (_sha256, _pickle),
    HashAlgorithm.SHA256_CBOR: (_sha256, _cbor),
    HashAlgorithm.XXHASH: (xxhash.xxh3_128_digest, _pickle),
    HashAlgorithm.XXHASH_CBOR: (xxhash.xxh3_128_digest, _cbor),
}
extras = st.builds(
    ExtraKeys,
    lora=st.none() | st.builds(Lora, name=st.text(min_size=2), path=st.text(min_size=2)),
    salt=st.none() | st.text(),
    media=st.lists(st.builds(MediaItem, st.text(min_size=2), st.integers(0, 60), st.integers(1, 30)), max_size=3).map(
        lambda items: tuple(sorted(items, key=lambda item: item.offset))
    ),
)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2**32), max_size=70),
    st.builds(Scheme, st.sampled_from(HashAlgorithm), st.integers(1, 20), st.text()),
    extras,
)
def test_chain_follows_the_rule(token_ids: list[int], scheme: Scheme, extra: ExtraKeys) -> None:
    """Every digest is the hash of its parent's, its ids and its keys; a block that is not full has none."""
    digest, encode = RULES[scheme.algorithm]
    parent = digest(encode(scheme.seed))
    expected = []
    for start in range(0, len(token_ids) - scheme.block_size + 1, scheme.block_size):
        end = start + scheme.block_size
        parent = digest(encode((parent, tuple(token_ids[start:end]), extra.for_block(start, end))))
        expected.append(parent)
    assert chain_digests(token_ids, scheme, extra) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**20), min_size=16, max_size=64), st.sampled_from(HashAlgorithm), extras)
def test_extending_block_by_block_gives_the_chain(
    token_ids: list[int], algorithm: HashAlgorithm, extra: ExtraKeys
) -> None:
    """One block after another, as events come, gives the digests of the whole prompt."""
    scheme = Scheme(algorithm, 8, "7")
    parent, digests = scheme.root(), []
    for start in range(0, len(token_ids) - 7, 8):
        parent = extend_digest(parent, token_ids[start : start + 8], extra.for_block(start, start + 8), algorithm)
        digests.append(parent)
    assert digests == chain_digests(token_ids, scheme, extra)


def test_chain_is_the_low_half_of_the_digests() -> None:
    """`chain` names the blocks that `chain_digests` hashes."""
    scheme = Scheme(HashAlgorithm.SHA256_CBOR, 16)
    ids = list(range(100))
    assert chain(ids, scheme) == [int.from_bytes(d[-8:], "big") for d in chain_digests(ids, scheme)]
    assert block_hash(bytes(31) + b"\x07") == 7


def test_token_ids_may_be_any_sequence() -> None:
    """Tuples and ranges are hashed as lists are."""
    for algorithm in (HashAlgorithm.SHA256, HashAlgorithm.SHA256_CBOR):
        scheme = Scheme(algorithm, 16)
        assert chain(range(50), scheme) == chain(tuple(range(50)), scheme) == chain(list(range(50)), scheme)


@pytest.mark.parametrize(
    ("prompt_tokens", "block_size", "hit"),
    [(0, 16, 0), (-1, 16, 0), (1, 16, 0), (16, 16, 0), (17, 16, 16), (64, 16, 48), (65, 16, 64), (112, 16, 96)],
)
def test_a_hit_never_covers_the_last_token(prompt_tokens: int, block_size: int, hit: int) -> None:
    """At most the prompt less its last token, in whole blocks."""
    assert max_hit_tokens(prompt_tokens, block_size) == hit


def _repeats() -> list[Any]:
    answered = [vector for vector in VECTORS["engine"] if vector["status"] == 200]
    single = [vector for vector in answered if isinstance(vector["prompt_token_ids"][0], int)]
    return [vector for vector in single if vector["name"] not in ("echo_logprobs", "prompt_logprobs")]


@pytest.mark.parametrize("vector", _repeats(), ids=lambda v: f"{v['name']}-{v['block_size']}")
def test_repeats_hit_as_the_engine_said(vector: dict[str, Any]) -> None:
    """A prompt that was sent again hit exactly `max_hit_tokens` in the running engine."""
    assert max_hit_tokens(len(vector["prompt_token_ids"]), vector["block_size"]) == vector["cached_repeat"]
