"""The prefix index against a naive one, and the promises that a walk alone can't show."""

from __future__ import annotations

import random
import sys
import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.holders import MAX_SHARED_SETS, NATIVE, PYTHON, Core, PythonHolderTable
from router.index.prefix_index import GPU, Match, PrefixIndex

SLOTS = range(4)
CORES = [pytest.param(PYTHON, id="python")] + ([pytest.param(NATIVE, id="native")] if NATIVE else [])


@pytest.fixture(params=CORES)
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    """An empty index of each kind."""
    return PrefixIndex(request.param)


class NaiveIndex:
    """A set of (block, tier, group) a slot: the oracle."""

    def __init__(self) -> None:
        self.held: dict[int, set[tuple[int, int, int]]] = {}
        self.groups: dict[int, set[int]] = {}

    def store(self, slot, hashes, tier, group):
        self.groups.setdefault(slot, set()).add(group)
        self.held.setdefault(slot, set()).update((block, tier, group) for block in hashes)

    def remove(self, slot, hashes, tier, group):
        self.held.setdefault(slot, set()).difference_update((block, tier, group) for block in hashes)

    def clear(self, slot):
        self.held.pop(slot, None)
        self.groups.pop(slot, None)

    def match(self, hashes, slots):
        found = {}
        for slot in slots:
            held, groups = self.held.get(slot, set()), self.groups.get(slot, set())
            blocks = gpu = cpu = 0
            for block in hashes:
                if not groups or not all(any((block, tier, g) in held for tier in range(3)) for g in groups):
                    break
                blocks += 1
                if all((block, 0, g) in held for g in groups):
                    gpu += 1
                elif all((block, 0, g) in held or (block, 1, g) in held for g in groups):
                    cpu += 1
            if blocks:
                found[slot] = Match(blocks, gpu, cpu)
        return found


BLOCKS = st.lists(st.integers(0, 12), max_size=8)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.sampled_from(SLOTS), BLOCKS, st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("remove"), st.sampled_from(SLOTS), BLOCKS, st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("clear"), st.sampled_from(SLOTS)),
        st.tuples(st.just("sweep"), st.integers(1, 5)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("core", CORES)
@given(changes=CHANGES, chain=st.lists(st.integers(0, 12), max_size=10, unique=True), one_layer=st.booleans())
def test_every_match_is_the_naive_one(core: Core, changes, chain, one_layer):
    """Whatever was stored, removed, cleared and swept, in whatever order, matches are exact, tiers and groups too."""
    index, oracle = PrefixIndex(core), NaiveIndex()
    view = index.view(SLOTS)
    for name, *arguments in changes:
        if name == "sweep":
            index.sweep(*arguments)
            continue
        if one_layer and name != "clear":
            arguments = [*arguments[:2], 0, 0]
        getattr(index, name)(*arguments)
        getattr(oracle, name)(*arguments)
    naive = oracle.match(chain, SLOTS)
    assert index.match(chain, SLOTS) == naive
    assert index.depths(chain, view)[0] == [naive[slot].blocks if slot in naive else 0 for slot in SLOTS]
    for slot in SLOTS:
        assert index.dump(slot) == oracle.held.get(slot, set())
        assert index.blocks_of(slot) == len(oracle.held.get(slot, set()))


def test_a_match_ends_at_the_first_hole(index: PrefixIndex) -> None:
    """A block behind a missing one can't be read by the engine, so it does not count."""
    index.store(0, [1, 2, 4, 5])
    assert index.match([1, 2, 3, 4, 5], [0]) == {0: Match(2, 2)}


def test_units_that_are_not_asked_for_are_not_matched(index: PrefixIndex) -> None:
    """Only candidates are in the answer."""
    index.store(0, [1])
    index.store(1, [1])
    assert set(index.match([1], [1])) == {1}


def test_applying_a_change_twice_changes_nothing(index: PrefixIndex) -> None:
    """Routers may hear a batch twice."""
    index.store(0, [1, 2])
    index.store(0, [1, 2])
    assert index.blocks_of(0) == 2
    index.remove(0, [1])
    index.remove(0, [1])
    assert index.dump(0) == {(2, 0, 0)}


def test_a_cleared_unit_is_forgotten_at_once_and_its_memory_comes_back_in_slices(index: PrefixIndex) -> None:
    """Clearing does not visit the blocks; sweeping does, a bounded number a call."""
    index.store(0, range(1_000))
    index.store(1, range(500))
    index.clear(0)
    assert index.match([0, 1], [0, 1]) == {1: Match(2, 2)}
    assert index.total_blocks == 1_000
    calls = 1
    while index.sweep(100):
        calls += 1
    assert index.total_blocks == 500
    assert calls >= 10


def test_a_column_is_used_again_only_after_it_was_swept(index: PrefixIndex) -> None:
    """A unit that comes after a cleared one must not inherit its blocks."""
    index.store(0, [1, 2, 3])
    index.clear(0)
    index.store(5, [9])
    assert index.match([1, 2], [5]) == {}
    while index.sweep():
        pass
    index.store(6, [8])
    assert index.match([1, 2], [6]) == {}


def test_a_view_follows_its_units(index: PrefixIndex) -> None:
    """Whoever keeps a view need not know of units that come, are cleared, or begin to be sampled."""
    view = index.view([5, 0])
    assert index.depths([1], view)[0] == [0, 0]
    index.store(0, [1])
    assert index.depths([1], view)[0] == [0, 1]
    index.store(5, [1, 2])
    index.clear(0)
    assert index.depths([1, 2], view)[0] == [2, 0]
    index.store(0, [1])
    assert index.depths([1, 2], view)[0] == [2, 1]


def test_what_is_shared_does_not_grow_with_all_that_ever_was() -> None:
    """Blocks that change hands among 64 units for a long time leave a bounded table of sets."""
    rng, table = random.Random(3), PythonHolderTable()
    for _ in range(150_000):
        column, block = rng.randrange(64), rng.randrange(500)
        (table.add if rng.random() < 0.5 else table.discard)(column, [block])
    assert len(table._sets) <= MAX_SHARED_SETS + 64


def test_a_tier_that_is_empty_again_leaves_the_fast_walk(index: PrefixIndex) -> None:
    """A unit with a CPU tier that came and went costs the others nothing."""
    index.store(0, [1])
    index.store(1, [1], tier=1)
    index.clear(1)
    while index.sweep():
        pass
    index.store(2, [2], tier=2)
    index.remove(2, [2], tier=2)
    assert list(index._layers) == [(0, 0)]


def test_a_unit_that_claims_groups_without_end_matches_nothing_and_grows_nothing(index: PrefixIndex) -> None:
    """Its own claim costs it its matches, and no other unit anything."""
    index.store(0, [1, 2])
    for group in range(500):
        index.store(1, [1, 2], group=group)
    assert len(index._layers) <= 40
    assert index.match([1, 2], [0, 1]) == {0: Match(2, 2)}


def test_bits_that_no_unit_has_are_not_matched(index: PrefixIndex) -> None:
    """A mask of everything is harmless, also after a unit left."""
    index.store(0, [1])
    index.store(1, [1])
    index.clear(0)
    assert set(index.match([1], range(10))) == {1}


@pytest.mark.parametrize("core", CORES)
def test_a_block_held_by_one_unit_costs_at_most_90_bytes(core: Core) -> None:
    """Memory for each block: its key and its entry; the set of holders is shared."""
    rng, index = random.Random(1), PrefixIndex(core)
    tracemalloc.start()
    try:
        for slot in range(10):
            index.store(slot, array("Q", [rng.getrandbits(64) for _ in range(30_000)]))
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if core is NATIVE:  # its memory is not Python's
        used_bytes = sys.getsizeof(index._layers[(GPU, 0)])
        assert used_bytes >= 12 * 300_000
    assert used_bytes / 300_000 <= (24 if core is NATIVE else 90)
