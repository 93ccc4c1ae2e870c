"""Blocks named by their tokens: what routers are told is the chain that they compute of the same prompt."""

from __future__ import annotations

import pytest

from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.copies import CopiesOverflowError
from replica.agent.mapping import MappedCopies, own_scheme
from replica.agent.proof import SchemeProof
from replica.agent.unit import UnitState
from router.kv.events import BlockRemoved, BlockStored, Tier
from router.kv.extra_keys import ExtraKeys, Lora
from router.kv.hashes import chain

PROMPT = list(range(1000, 1064))
SCHEME = own_scheme(16)
OWN = chain(PROMPT, SCHEME)


def stored(*hashes: int, parent: int | None = None, tokens: list[int] | None = None, **more: object) -> BlockStored:
    """An event of the engine's blocks, whose hashes are as good as random."""
    return BlockStored(hashes, parent, PROMPT[: 16 * len(hashes)] if tokens is None else tokens, 16, **more)  # type: ignore[arg-type]


def live(copies: MappedCopies) -> set[tuple[int, int]]:
    return {(block, tier) for tier, _, _, hashes in copies.layers() for block in hashes}


def mapped(num_blocks: int | None = None) -> MappedCopies:
    return MappedCopies(num_blocks, 16, {"sql": "/loras/sql"})


def test_own_names_are_the_chain_of_the_tokens() -> None:
    """Stored in one event and in several, the blocks have the names that a router gives them."""
    copies = mapped()
    assert copies.store(stored(7, 8)) == OWN[:2]
    assert copies.store(stored(9, parent=8, tokens=PROMPT[32:48])) == OWN[2:3]
    assert live(copies) == {(block, 0) for block in OWN[:3]}
    assert len(copies) == 3


def test_copies_are_counted_under_own_names() -> None:
    """Only the first and the last of two copies are told, and again after that."""
    copies = mapped()
    assert copies.store(stored(7, 8)) == OWN[:2]
    assert copies.store(stored(7, 8)) == []
    assert copies.remove(BlockRemoved((8, 7))) == []
    assert copies.remove(BlockRemoved((8, 7))) == [OWN[1], OWN[0]]
    assert copies.store(stored(7)) == OWN[:1]


def test_a_block_without_a_known_beginning_has_no_name_until_it_has() -> None:
    """What hangs from a missed block is held and not told; stored again behind a known one, it is."""
    copies = mapped()
    assert copies.store(stored(8, 9, parent=7, tokens=PROMPT[16:48])) == []
    assert (len(copies), copies.unnamed) == (0, 2)
    assert copies.store(stored(7)) == OWN[:1]
    assert copies.store(stored(8, 9, parent=7, tokens=PROMPT[16:48])) == OWN[1:3]
    assert copies.remove(BlockRemoved((9,))) == []  # two copies of it are counted
    assert copies.remove(BlockRemoved((9,))) == [OWN[2]]


def test_a_tier_that_tells_no_tokens_takes_the_names_of_the_other() -> None:
    """Copied to the CPU and evicted from the GPU, a block keeps its name, and children of it can be named."""
    copies = mapped()
    copies.store(stored(7, 8))
    assert copies.store(BlockStored((7, 8), None, (), 16, Tier.CPU)) == OWN[:2]
    assert copies.remove(BlockRemoved((8, 7))) == [OWN[1], OWN[0]]
    assert live(copies) == {(block, 1) for block in OWN[:2]}
    assert copies.store(stored(9, parent=8, tokens=PROMPT[32:48])) == OWN[2:3]


def test_an_adapters_blocks_are_named_with_its_path() -> None:
    """As routers name them; an adapter that is not served, and keys that events tell without their tags, have none."""
    copies = mapped()
    lora = ExtraKeys(lora=Lora("sql", "/loras/sql"))
    assert copies.store(stored(7, lora_name="sql", extra_keys=(("sql",),))) == chain(PROMPT[:16], SCHEME, lora)
    assert copies.store(stored(8, lora_name="other")) == []
    assert copies.store(stored(9, extra_keys=(("salt",),))) == []
    assert copies.store(stored(10, lora_name="sql", extra_keys=(("sql", "salt"),))) == []


@pytest.mark.parametrize(
    "event",
    [
        BlockStored((7,), None, PROMPT[:8], 16),
        BlockStored((7,), None, PROMPT[:32], 16),
        BlockStored((7,), None, PROMPT[:32], 32),
        BlockStored((7,), None, [[1, 2]] * 16, 16),  # type: ignore[list-item]
        BlockStored((7,), None, [1.5] * 16, 16),  # type: ignore[list-item]
        BlockStored((7,), None, [2**70] * 16, 16),
    ],
)
def test_what_can_not_be_named_is_not(event: BlockStored) -> None:
    """Sparse stores, blocks of another size, and tokens that are none."""
    copies = mapped()
    assert copies.store(event) == []
    assert copies.unnamed == 1
    assert copies.remove(BlockRemoved((7,))) == []


def test_the_sum_of_copies_never_passes_the_tier() -> None:
    """Re-announced blocks are clamped to one copy; more distinct ones than there can be are an overflow."""
    copies = mapped(2)
    for _ in range(3):
        copies.store(stored(7, 8))
    assert copies.clamped > 0
    assert copies.remove(BlockRemoved((8,))) == [OWN[1]]
    copies.store(stored(8, parent=7, tokens=PROMPT[16:32]))
    with pytest.raises(CopiesOverflowError):
        copies.store(stored(9, parent=8, tokens=PROMPT[32:48]))


@pytest.mark.parametrize(
    ("name", "blocks"), [("eviction_int_block32", 22), ("sha256_int_block32", 2), ("sha256_cbor_bytes_block16", 4)]
)
def test_a_recording_of_an_unknown_scheme_ends_with_its_true_blocks(name: str, blocks: int, recordings) -> None:  # type: ignore[no-untyped-def]
    """The real engine's frames, read by an agent that has no name for its algorithm: as many blocks as by its own."""
    exact = UnitState("r0/0", VllmAdapter(), SchemeProof(None, None, None), None)
    own = UnitState("r0/0", VllmAdapter(), SchemeProof("sha3", None, None), None, maps=True)
    for _, sequence, data in recordings[name]:
        exact.accept(sequence, data)
        own.accept(sequence, data)
    assert own.mapped is not None
    assert len(own.copies) == len(exact.copies) == blocks
    assert own.life == 0
