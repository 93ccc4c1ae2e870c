"""The chain against what a real vLLM 0.32 published and what its own library computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.kv.extra_keys import ExtraKeys, Lora, MediaItem
from router.kv.hashes import block_hash, chain_digests
from router.kv.schemes import HashAlgorithm, Scheme

VECTORS = json.loads((Path(__file__).parents[1] / "golden/vectors/vllm-0.32-hashes.json").read_text())
ANSWERED = [vector for vector in VECTORS["engine"] if vector["status"] == 200]


def _id(vector: dict[str, Any]) -> str:
    return f"{vector['name']}-{vector['algo']}-{vector['block_size']}"


def _scheme(vector: dict[str, Any]) -> Scheme:
    return Scheme(HashAlgorithm(vector["algo"]), vector["block_size"], vector["pythonhashseed"])


def _sequences(vector: dict[str, Any]) -> list[list[int]]:
    """Every token sequence whose blocks the request left in the cache, as far as the vector recorded it."""
    prompts, outputs = vector["prompt_token_ids"], vector["output_token_ids"]
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]
    if outputs and isinstance(outputs[0], int):
        outputs = [outputs]
    if len(prompts) < len(outputs):
        prompts = prompts * len(outputs)
    return [prompt + output[:-1] for prompt, output in zip(prompts, outputs, strict=True)]


@pytest.mark.parametrize("vector", ANSWERED, ids=_id)
def test_engine_digests_reproduce(vector: dict[str, Any]) -> None:
    """Each full block of prompt and output that the running engine cached has the digest that it recorded."""
    extra = ExtraKeys(salt=vector["body"].get("cache_salt"))
    digests: list[str] = []
    for sequence in _sequences(vector):
        digests += [digest.hex() for digest in chain_digests(sequence, _scheme(vector), extra)]
    assert set(digests) == set(vector["ref_block_hashes"])
    if len(_sequences(vector)) == 1:
        assert digests == vector["ref_block_hashes"]


@pytest.mark.parametrize("vector", ANSWERED, ids=_id)
def test_published_hashes_are_the_digests_or_their_last_8_bytes(vector: dict[str, Any]) -> None:
    """What the engine publishes follows from the digest, in both of its forms."""
    digests = [bytes.fromhex(digest) for digest in vector["ref_block_hashes"]]
    as_published = [d.hex() if vector["event_hash_format"] == "bytes" else block_hash(d) for d in digests]
    assert as_published == vector["expected_block_hashes"]


@pytest.mark.parametrize("vector", VECTORS["engine"] + VECTORS["lib"], ids=_id)
def test_root_reproduces(vector: dict[str, Any]) -> None:
    """The root of the chain is the engine's NONE_HASH."""
    assert _scheme(vector).root().hex() == vector["none_hash"]


@pytest.mark.parametrize("vector", VECTORS["lib"], ids=_id)
def test_library_digests_with_extra_keys_reproduce(vector: dict[str, Any]) -> None:
    """LoRA, media, salt and prompt embeddings give the library's own digests, in sha256 and sha256_cbor."""
    shared: dict[str, str] = {}  # the recording held equal identifiers as one object, which pickle can tell
    media = tuple(MediaItem(shared.setdefault(name, name), *place) for name, *place in vector["mm_features"])
    lora = Lora(*vector["lora"]) if vector["lora"] else None
    embeds = tuple(key[1] for keys in vector["extra_keys_hashed"] for key in keys or () if key[0] == "prompt_embeds")
    extra = ExtraKeys(lora, vector["cache_salt"], media, embeds)
    digests = chain_digests(vector["token_ids"], _scheme(vector), extra)
    assert [digest.hex() for digest in digests] == vector["block_hashes"]
