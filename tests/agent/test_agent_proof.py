"""A scheme is proven by a chain from a root, and by nothing less."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.proof import SchemeProof
from router.kv.events import BlockStored, GroupKind, Tier
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme

CBOR = Scheme(HashAlgorithm.SHA256_CBOR, 16)
TOKENS = list(range(100, 148))


def event(hashes: list[int], tokens: list[int], parent: int | None = None, **more: object) -> BlockStored:
    fields: dict[str, object] = {"extra_keys": (None,) * len(hashes)}
    return BlockStored(tuple(hashes), parent, tokens, 16, **{**fields, **more})  # type: ignore[arg-type]


def proof(algorithm: str | None = "sha256_cbor", seed: str | None = None) -> SchemeProof:
    return SchemeProof(algorithm, 16, seed)


@pytest.mark.parametrize(
    ("name", "algorithm", "size"),
    [
        ("eviction_int_block32", "sha256_cbor", 32),
        ("hybrid_groups", "sha256_cbor", 32),
        ("sha256_cbor_bytes_block16", "sha256_cbor", 16),
        ("sha256_int_block32", "sha256", 32),
    ],
)
def test_the_real_engines_recordings_prove_their_scheme(name: str, algorithm: str, size: int, recordings) -> None:  # type: ignore[no-untyped-def]
    """Told the algorithm or not, each recording proves the scheme of the engine that made it."""
    for told in (algorithm, None):
        one = SchemeProof(told, size, None)
        for _, _, payload in recordings[name]:
            for happened in VllmAdapter().read(payload).events:
                if isinstance(happened, BlockStored):
                    one.see(happened)
        assert (one.state, one.scheme) == ("proven", Scheme(HashAlgorithm(algorithm), size))


def test_another_algorithm_is_refuted_with_a_remedy(recordings) -> None:  # type: ignore[no-untyped-def]
    """A recording of sha256_cbor refutes sha256, and the reason names the option that may help."""
    one = SchemeProof("sha256", 16, None)
    for _, _, payload in recordings["sha256_cbor_bytes_block16"]:
        for happened in VllmAdapter().read(payload).events:
            if isinstance(happened, BlockStored):
                one.see(happened)
    assert one.state == "refuted"
    assert "--hash-seed" in (one.reason or "")


def test_the_seed_matters() -> None:
    """A root block of an engine with PYTHONHASHSEED=42 proves seed 42 and refutes none."""
    root = event(chain(TOKENS[:16], Scheme(HashAlgorithm.SHA256_CBOR, 16, "42")), TOKENS[:16])
    with_seed, without = proof(seed="42"), proof()
    with_seed.see(root)
    without.see(root)
    assert (with_seed.state, without.state) == ("proven", "refuted")


def test_a_chain_in_the_middle_proves_nothing() -> None:
    """Blocks whose beginning was missed leave the proof open, however many."""
    one = proof()
    first, second, third = chain(TOKENS, CBOR)
    one.see(event([second, third], TOKENS[16:], parent=first))
    assert one.state == "open"


def test_a_salted_root_of_an_old_release_refutes_nothing() -> None:
    """Without extra keys in the event, a mismatch may be a salt that it does not tell; a later match still proves."""
    one = proof()
    one.see(event([12345], TOKENS[:16], extra_keys=None))
    assert one.state == "open"
    one.see(event(chain(TOKENS[:16], CBOR), TOKENS[:16], extra_keys=None))
    assert one.state == "proven"


def test_our_own_probe_refutes_without_extra_keys() -> None:
    """The probe is known to be plain."""
    one = proof()
    one.expect_probe(TOKENS[:16])
    one.see(event([12345], TOKENS[:16], extra_keys=None))
    assert one.state == "refuted"


@pytest.mark.parametrize(
    "more",
    [
        {"extra_keys": (("a salt",),)},
        {"lora_name": "sql"},
        {"kind": GroupKind.WINDOW},
        {"token_ids": TOKENS[:32]},
        {"token_ids": ["x"] * 16},
        {"token_ids": [-1] * 16},
        {"extra_keys": ()},
    ],
)
def test_what_cant_be_compared_is_left_out(more: dict[str, object]) -> None:
    """Extra keys, adapters, windows, sparse stores and odd tokens neither prove nor refute."""
    one = proof()
    fields = {"hashes": (1,), "parent": None, "token_ids": TOKENS[:16], "block_size": 16, "extra_keys": (None,)}
    one.see(BlockStored(**{**fields, **more}))  # type: ignore[arg-type]
    assert one.state == "open"


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_xxhash_without_a_seed_can_never_be_proven(algorithm: str) -> None:
    """Its root is random; the reason says what to set."""
    one = proof(algorithm)
    assert one.state == "refuted"
    assert "PYTHONHASHSEED" in (one.reason or "")
    assert proof(algorithm, seed="0").state == "open"


def test_a_new_algorithm_is_said() -> None:
    """An algorithm that nobody knows yet is a reason, not an error."""
    assert "blake9" in (proof("blake9").reason or "")


def test_a_recorded_probe_like_request_is_decisive(recordings) -> None:  # type: ignore[no-untyped-def]
    """One root block of the real engine is enough."""
    payload = recordings["eviction_int_block32"][0][2]
    assert msgspec.msgpack.decode(payload)[1][0]["parent_block_hash"] is None
    one = SchemeProof("sha256_cbor", 32, None)
    one.see(VllmAdapter().read(payload).events[0])
    assert one.state == "proven"


@pytest.mark.parametrize("algorithm", ["sha256_cbor", None])
@pytest.mark.parametrize("told", [None, 32])
def test_the_events_block_size_is_the_one_that_is_proven(told: int | None, algorithm: str | None) -> None:
    """Untold, or told as another: blocks of 16 tokens prove a scheme of 16 tokens, whichever algorithm it is."""
    one = SchemeProof(algorithm, told, None)
    one.see(event(chain(TOKENS[:16], CBOR), TOKENS[:16]))
    assert (one.scheme, one.block_size, one.sizes_differ) == (CBOR, 16, told is not None)


def test_two_sizes_that_differ_are_both_named() -> None:
    """While nothing is proven, the reason tells the events' block size and the one of the metrics."""
    one = SchemeProof("sha256_cbor", 32, None)
    one.see(event([1], TOKENS[:16], extra_keys=None))
    assert "16 tokens" in (one.reason or "")
    assert "say 32" in (one.reason or "")


def test_a_group_of_larger_blocks_refutes_nothing_of_the_told_size() -> None:
    """Its hashes join those of smaller blocks, so they are no chain's: the group of the told size decides."""
    one = proof()
    wide = BlockStored((12345,), None, TOKENS[:32], 32, extra_keys=(None,))
    one.see(event([], []))
    one.see(event(chain(TOKENS[:16], CBOR), TOKENS[:16], extra_keys=(("a salt",),)))
    one.see(wide)
    assert one.state == "open"
    one.see(event(chain(TOKENS[:16], CBOR), TOKENS[:16]))
    assert one.state == "proven"


def test_roots_that_were_seen_are_told_of() -> None:
    """The reason says that roots did not match, or were of no use, and not that there were none."""
    one = proof()
    assert one.reason == "no root block seen yet"
    one.see(event([1], TOKENS[:16], extra_keys=(("a salt",),)))
    assert "1 root blocks were seen, all with" in (one.reason or "")
    one.see(event([2], TOKENS[:16], extra_keys=None))
    assert "1 root blocks were seen and none has the hash of sha256_cbor" in (one.reason or "")
    assert "--hash-seed" in (one.reason or "")


def test_root_blocks_on_the_cpu_alone_prove() -> None:
    """A replica that announces only its CPU tier is proven by it; what does not match there refutes nothing."""
    one = proof()
    one.see(event([1], TOKENS[:16], tier=Tier.CPU))
    assert one.state == "open"
    one.see(event(chain(TOKENS[:16], CBOR), TOKENS[:16], tier=Tier.CPU))
    assert one.state == "proven"


ENGINE = json.loads((Path(__file__).parents[1] / "golden/hash_units.json").read_text())


@pytest.mark.parametrize(("block_size", "unit"), [(16, None), (16, 16), (64, 16), (32, None)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_larger_blocks_prove_the_unit_that_they_are_hashed_by(
    block_size: int, unit: int | None, order: tuple[int, int]
) -> None:
    """Groups of 32 and 48 tokens, hashed by 16: in either order, told the unit or only a size that shares it."""
    one = SchemeProof("sha256_cbor", block_size, None, unit)
    groups = []
    for group, size in enumerate((48, 32)):
        hashes = ENGINE["sizes"][str(size)]
        tokens = ENGINE["token_ids"][: len(hashes) * size]
        groups.append(BlockStored(tuple(hashes), None, tokens, size, group=group, extra_keys=(None,) * len(hashes)))
    for group in order:
        one.see(groups[group])
    if (block_size, unit, order) == (32, None, (1, 0)):
        assert one.state == "refuted"  # 32 alone was tried by then, and it is not what they are hashed by
    else:
        assert (one.state, one.scheme) == ("proven", CBOR)
