"""Waiting changes are joined, split to bounded batches, and keep their meaning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replica.agent.coalescer import MAX_BATCH_BLOCKS, Coalescer
from router.kv.wire import Change


def test_neighbours_of_one_kind_become_one() -> None:
    """Three stores in a row are one change; the order of different changes is kept."""
    waiting = Coalescer()
    waiting.add([Change("stored", 0, 0, 0, [1]), Change("stored", 0, 0, 0, [2])])
    waiting.add([Change("stored", 0, 0, 0, [3]), Change("removed", 0, 0, 0, [1]), Change("stored", 1, 0, 0, [1])])
    assert waiting.take() == [
        (
            Change("stored", 0, 0, 0, [1, 2, 3]),
            Change("removed", 0, 0, 0, [1]),
            Change("stored", 1, 0, 0, [1]),
        )
    ]
    assert not waiting
    assert waiting.blocks == 0


def test_what_lies_between_two_alike_keeps_them_apart_where_it_has_their_blocks_alone() -> None:
    """A prompt stores, evicts and stores again: two changes, unless a block was evicted that is stored again."""
    waiting = Coalescer()
    for block in range(4):
        waiting.add([Change("stored", 0, 0, 0, [block]), Change("removed", 0, 0, 0, [100 + block])])
    assert waiting.take() == [
        (Change("stored", 0, 0, 0, [0, 1, 2, 3]), Change("removed", 0, 0, 0, [100, 101, 102, 103]))
    ]
    again = [Change("stored", 0, 0, 0, [1]), Change("removed", 0, 0, 0, [1]), Change("stored", 0, 0, 0, [1])]
    waiting.add(again)
    assert waiting.take() == [tuple(again)]


def test_what_comes_after_a_clear_stays() -> None:
    """Stored, cleared, stored: the clear and what came after it, in that order."""
    waiting = Coalescer()
    waiting.add([Change("stored", 0, 0, 0, [1]), Change("cleared"), Change("stored", 0, 0, 0, [2])])
    assert waiting.take() == [(Change("cleared"), Change("stored", 0, 0, 0, [2]))]


def test_batches_are_bounded() -> None:
    """Two and a half batches' worth of hashes are three batches, with every hash once and in order."""
    waiting = Coalescer()
    many = list(range(MAX_BATCH_BLOCKS * 5 // 2))
    waiting.add([Change("stored", 0, 0, 0, many)])
    batches = waiting.take()
    assert [sum(len(c.hashes) for c in batch) for batch in batches] == [8192, 8192, 4096]
    assert [h for batch in batches for c in batch for h in c.hashes] == many


CHANGE = st.builds(
    lambda op, group, hashes: Change(op, 0, group, 0, [] if op == "cleared" else hashes),
    st.sampled_from(["stored", "removed", "cleared"]),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
)


@given(st.lists(st.lists(CHANGE, max_size=4), max_size=8))
def test_applying_the_batches_equals_applying_the_changes(parts: list[list[Change]]) -> None:
    """A reader ends with the same set, whether or not changes were coalesced."""
    waiting = Coalescer()
    for part in parts:
        waiting.add(part)
    start = {(h, g) for h in range(5) for g in (0, 1)}

    def apply(changes: list[Change]) -> set[tuple[int, int]]:
        live = set(start)
        for change in changes:
            blocks = {(h, change.group) for h in change.hashes}
            live = set() if change.op == "cleared" else live | blocks if change.op == "stored" else live - blocks
        return live

    assert apply([c for batch in waiting.take() for c in batch]) == apply([c for part in parts for c in part])
