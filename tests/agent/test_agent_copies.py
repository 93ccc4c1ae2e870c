"""Copies are counted, and only the first and the last are told."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.agent import copies as agent_copies
from replica.agent.copies import CopiesOverflowError
from router.kv.events import BlockRemoved, BlockStored, GroupKind, Tier

FULL = GroupKind.FULL


class Copies(agent_copies.Copies):
    """Takes what an event says without the event."""

    def store(self, hashes, tier, group, kind):  # type: ignore[no-untyped-def, override]
        return super().store(BlockStored(tuple(hashes), None, (), 16, tier, group, kind))

    def remove(self, hashes, tier, group):  # type: ignore[no-untyped-def, override]
        return super().remove(BlockRemoved(tuple(hashes), tier, group))


def test_only_0_to_1_and_1_to_0_are_told() -> None:
    """A block stored twice appears once, and disappears with its second removal."""
    copies = Copies()
    assert copies.store([7, 8, 7], Tier.GPU, 0, FULL) == [7, 8]
    assert copies.remove([7], Tier.GPU, 0) == []
    assert copies.remove([7, 8], Tier.GPU, 0) == [7, 8]
    assert len(copies) == 0


def test_tiers_and_groups_are_apart() -> None:
    """Removing the GPU copy keeps the CPU copy, and the same hash in another group."""
    copies = Copies()
    for tier, group in ((Tier.GPU, 0), (Tier.CPU, 0), (Tier.GPU, 1)):
        copies.store([7], tier, group, FULL)
    assert copies.remove([7], Tier.GPU, 0) == [7]
    assert {layer[:2] for layer in copies.layers()} == {(Tier.CPU, 0), (Tier.GPU, 1)}


def test_an_unknown_removal_is_ignored() -> None:
    """Removing what is not held changes nothing."""
    copies = Copies()
    copies.store([7], Tier.GPU, 0, FULL)
    assert copies.remove([9], Tier.GPU, 0) == copies.remove([7], Tier.DISK, 5) == []
    assert len(copies) == 1


def test_reannounced_blocks_are_clamped_to_one_at_the_bound() -> None:
    """Four blocks announced over and over never count more copies than the tier has blocks."""
    copies = Copies(num_blocks=10)
    for _ in range(50):
        copies.store([1, 2, 3, 4], Tier.GPU, 0, FULL)
    assert copies.clamped > 0
    for _ in range(2):  # at most 10 copies of 4 blocks: some have one, none has three after the last clamp
        copies.remove([1, 2, 3, 4], Tier.GPU, 0)
    assert len(copies) == 0


def test_more_distinct_blocks_than_the_tier_has_is_an_error() -> None:
    """11 distinct blocks in a tier of 10: removals were lost."""
    with pytest.raises(CopiesOverflowError):
        Copies(num_blocks=10).store(range(11), Tier.GPU, 0, FULL)


def test_other_tiers_are_not_bound_by_the_gpus_blocks() -> None:
    """The CPU tier is larger than the GPU's."""
    assert len(Copies(num_blocks=10).store(range(11), Tier.CPU, 0, FULL)) == 11


def test_groups_are_bounded() -> None:
    """An engine can't make the agent hold groups without end."""
    copies = Copies()
    for group in range(256):
        copies.store([1], Tier.GPU, group, FULL)
    with pytest.raises(CopiesOverflowError):
        copies.store([1], Tier.GPU, 256, FULL)


STEP = st.tuples(st.sampled_from(["store", "remove", "clear"]), st.lists(st.integers(0, 5), max_size=6))


@given(st.lists(STEP, max_size=40))
def test_a_set_that_follows_what_is_told_equals_what_is_held(steps: list[tuple[str, list[int]]]) -> None:
    """A reader that applies the told changes holds exactly the blocks whose naive count is above zero."""
    copies, reader, naive = Copies(), set(), Counter()
    for op, hashes in steps:
        if op == "clear":
            copies.clear()
            reader.clear()
            naive.clear()
        elif op == "store":
            reader |= set(copies.store(hashes, Tier.GPU, 0, FULL))
            naive.update(hashes)
        else:
            reader -= set(copies.remove(hashes, Tier.GPU, 0))
            for block in hashes:
                naive[block] = max(0, naive[block] - 1)
        assert reader == {block for block, count in naive.items() if count}
        assert {h for *_, held in copies.layers() for h in held} == reader
