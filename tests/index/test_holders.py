"""The native table of holders against its pure Python twin: the same calls, the same answers."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.holders import NATIVE, NOBODY, PYTHON, Core, HolderTable, bits_as_bytes

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native core was not built")

COLUMNS = (0, 1, 2, 63, 64, 65, 130, 300)
"""Within a word, at its edges, and in words that come later: sets are widened on the way."""
HASHES = st.sampled_from([0, 1, 2, 3, 7, 2**32, 2**63, 2**64 - 1, *range(10**18, 10**18 + 10)])
BATCH = st.lists(HASHES, max_size=12)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "discard"]), st.sampled_from(COLUMNS), BATCH),
        st.tuples(st.just("sweep"), st.sets(st.sampled_from(COLUMNS), max_size=3)),
    ),
    max_size=25,
)


def pair() -> tuple[HolderTable, HolderTable]:
    assert NATIVE is not None
    return PYTHON.table(), NATIVE.table()


def swept(table: HolderTable, columns: Iterable[int]) -> int:
    return sum(table.sweep(sum(1 << column for column in columns), 3))


def contents(table: HolderTable) -> dict[int, set[int]]:
    return {column: {block for part in table.held_by(column, 5) for block in part} for column in COLUMNS}


def change(table: HolderTable, name: str, *arguments) -> int:
    return swept(table, *arguments) if name == "sweep" else getattr(table, name)(*arguments)


@given(CHANGES, st.lists(HASHES, max_size=40))
def test_any_changes_leave_both_equal(changes: list, chain: list[int]) -> None:
    """Counts, sizes, holders and walks agree after any sequence of changes."""
    twin, native = pair()
    for name, *arguments in changes:
        assert change(twin, name, *arguments) == change(native, name, *arguments)
        assert len(twin) == len(native)
    assert contents(twin) == contents(native)
    asked = array("i", [*COLUMNS, NOBODY, 5])
    assert NATIVE is not None
    assert PYTHON.walk(((None, twin, None, None),), chain, asked) == NATIVE.walk(
        ((None, native, None, None),), chain, asked
    )
    for block in chain:
        assert [twin.holds(column, block) for column in COLUMNS] == [native.holds(column, block) for column in COLUMNS]


LAYER = st.one_of(st.none(), st.lists(st.tuples(st.sampled_from(COLUMNS), st.sets(st.integers(0, 9))), max_size=6))
GROUP = st.tuples(st.one_of(st.none(), st.sets(st.sampled_from(COLUMNS))), LAYER, LAYER, LAYER)


@given(st.lists(GROUP, max_size=3), st.integers(0, 12), st.lists(st.sampled_from((*COLUMNS, NOBODY)), unique=True))
def test_walks_over_groups_and_tiers_are_equal(groups: list, length: int, asked: list[int]) -> None:
    """Whatever lies on which tier of which group, and whoever is asked for."""

    def walked(core: Core) -> object:
        built = []
        for columns, *tiers in groups:
            tables: list[HolderTable | None] = []
            for layer in tiers:
                table = None if layer is None else core.table()
                for column, blocks in layer or ():
                    table.add(column, list(blocks))  # type: ignore[union-attr]
                tables.append(table)
            mask = None if columns is None else bits_as_bytes(sum(1 << column for column in columns))
            built.append((mask, *tables))
        return core.walk(tuple(built), list(range(length)), array("i", asked))  # type: ignore[arg-type]

    assert NATIVE is not None
    assert walked(PYTHON) == walked(NATIVE)


def test_a_large_table_stays_equal_while_it_grows_and_shrinks() -> None:
    """Parts are resized many times, and entries move past each other."""
    rng = random.Random(7)
    twin, native = pair()
    known: list[int] = []
    for step in range(300):
        grows = step < 180
        column = rng.randrange(100)
        batch = [rng.getrandbits(64) for _ in range(300)] if grows else rng.sample(known, min(len(known), 900))
        for other in (column, rng.randrange(100)):
            name = "add" if grows else "discard"
            assert change(twin, name, other, batch) == change(native, name, other, array("Q", batch))
        known += batch if grows else []
    assert len(twin) == len(native) > 1_000
    for column in range(100):
        held = [{block for part in table.held_by(column, 999) for block in part} for table in (twin, native)]
        assert held[0] == held[1]
    for table in (twin, native):
        swept(table, range(100))
    assert len(twin) == len(native) == 0


def test_memory_comes_back_when_blocks_leave() -> None:
    """What a burst took is not kept for ever."""
    import sys

    _, native = pair()
    empty = sys.getsizeof(native)
    blocks = array("Q", random.Random(1).randbytes(8 * 100_000))
    native.add(3, blocks)
    full = sys.getsizeof(native)
    native.discard(3, blocks)
    assert full > empty + 12 * 100_000
    assert sys.getsizeof(native) < empty + 50_000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1, [1]), ValueError),
        ((1 << 40, [1]), ValueError),
        (("0", [1]), TypeError),
        ((0, ["1"]), TypeError),
        ((0, 5), TypeError),
        ((0, array("I", [1])), TypeError),
        ((0,), TypeError),
    ],
)
def test_what_is_no_column_or_no_block_is_refused(arguments: tuple, error: type[Exception]) -> None:
    """Nothing of it reaches the table's memory."""
    _, native = pair()
    for name in ("add", "discard"):
        with pytest.raises(error):
            getattr(native, name)(*arguments)
    assert len(native) == 0


def test_a_walk_refuses_what_is_no_table_and_no_columns() -> None:
    """A wrong argument is an exception, never a crash."""
    assert NATIVE is not None
    table = NATIVE.table()
    for groups, chain, columns in [
        (((None, {}, None, None),), [1], array("i", [0])),
        (((None, table, None),), [1], array("i", [0])),
        ((5,), [1], array("i", [0])),
        (((7, table, None, None),), [1], array("i", [0])),
        (((None, table, None, None),), [1], array("q", [0])),
        (((None, table, None, None),), [1], array("i", [-2])),
        (((None, table, None, None),), [None], array("i", [0])),
        (((None, table, None, None),), [*range(40), None], array("i", [0])),
    ]:
        with pytest.raises(TypeError):
            NATIVE.walk(groups, chain, columns)  # type: ignore[arg-type]
