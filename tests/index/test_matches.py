"""Cache groups with blocks of several sizes, against the engine's own hashes and a naive search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.prefix_index import CPU, GPU, Match, PrefixIndex
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme

# What vLLM 0.32 makes of a chain for groups with larger blocks (its BlockHashListWithBlockSize).
ENGINE = json.loads((Path(__file__).parents[1] / "golden/hash_units.json").read_text())
CHAIN = chain(ENGINE["token_ids"], Scheme(HashAlgorithm.SHA256_CBOR, ENGINE["unit"]))


def _index(*sizes: int, blocks: dict[int, int] | None = None) -> PrefixIndex:
    """An index of one unit whose groups hold the engine's blocks of these sizes; `blocks` of a group, else all."""
    index = PrefixIndex()
    index.set_strides(0, [(group, size // 16) for group, size in enumerate(sizes)])
    for group, size in enumerate(sizes):
        held = ENGINE["sizes"][str(size)]
        index.store(0, held[: (blocks or {}).get(group, len(held))], group=group)
    return index


def _matched(index: PrefixIndex) -> Match | None:
    return index.match(CHAIN, [0]).get(0)


def test_the_engine_names_larger_blocks_by_our_chain() -> None:
    """A block of 32, 48 or 64 tokens bears the hash of its last 16."""
    for size, held in ENGINE["sizes"].items():
        step = int(size) // 16
        assert held == CHAIN[step - 1 :: step]


@pytest.mark.parametrize(
    ("sizes", "blocks", "pieces"),
    [
        ((16, 32), None, 24),  # 400 tokens are 25 pieces, 12 blocks of 32
        ((32, 48), None, 24),  # the last common end: 384 tokens
        ((48, 64), None, 24),
        ((64,), None, 24),
        ((16, 64), {0: 13}, 12),  # 13 pieces are 3 blocks of 64 and one piece
        ((16, 32), {1: 0}, None),
        ((32, 48), {0: 5}, 6),  # 160 tokens of 32s, all of 48s: 96 is a multiple of both
    ],
)
def test_a_match_needs_every_group_up_to_the_end_of_a_block_in_each(
    sizes: tuple[int, ...], blocks: dict[int, int] | None, pieces: int | None
) -> None:
    """Where one group's block is cut, its tokens are computed anew."""
    found = _matched(_index(*sizes, blocks=blocks))
    assert found == (None if pieces is None else Match(pieces, pieces))


def test_a_block_that_is_registered_for_a_piece_is_used_up_to_it() -> None:
    """The engine announces such a piece by its own hash, within the block or behind the last one."""
    index = _index(16, 64, blocks={0: 14, 1: 3})
    assert _matched(index) == Match(12, 12)
    index.store(0, [CHAIN[13]], group=1)
    assert _matched(index) == Match(14, 14)
    index.remove(0, [CHAIN[13]], group=1)
    assert _matched(index) == Match(12, 12)


def test_tiers_count_in_every_group() -> None:
    """What one group must load from the CPU has to be loaded."""
    index = _index(16, 32, blocks={1: 2})
    index.store(0, ENGINE["sizes"]["32"][2:6], CPU, 1)
    assert _matched(index) == Match(12, 4, 8)


def test_other_units_are_walked_as_ever_and_a_slot_begins_anew() -> None:
    """One unit's groups are nobody else's."""
    index = _index(16, 32)
    index.store(1, CHAIN[:7])
    assert index.match(CHAIN, [0, 1]) == {0: Match(24, 24), 1: Match(7, 7)}
    index.clear(0)
    index.set_strides(0, ())
    index.store(0, CHAIN[:3])
    assert _matched(index) == Match(3, 3)


@given(
    st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=3),
    st.lists(st.sets(st.integers(1, 12)), min_size=3, max_size=3),
    st.integers(0, 12),
)
def test_any_holding_is_as_a_naive_search_finds_it(strides: list[int], held: list[set[int]], length: int) -> None:
    """A prefix is usable when each group holds the blocks before its end, and the end itself."""
    index, hashes = PrefixIndex(), list(range(100, 100 + length))
    index.set_strides(0, enumerate(strides))
    for group, _ in enumerate(strides):
        index.store(0, [99 + end for end in held[group]], GPU, group)
        index.store(0, [-1], GPU, group)  # every group has something

    def usable(end: int) -> bool:
        return all(
            end == 0 or (end in held[group] and all(full in held[group] for full in range(stride, end, stride)))
            for group, stride in enumerate(strides)
        )

    expected = max(filter(usable, range(length + 1)))
    found = index.match(hashes, [0]).get(0)
    assert (found.blocks if found else 0) == expected
