"""Compact sets and maps behave as Python's own, the native ones and their pure Python twins."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.agent.block_table import PurePythonBlockMap, PurePythonBlockSet
from router import native

HASHES = st.integers(0, 2**64 - 1) | st.integers(0, 40) | st.integers(0, 60).map(lambda n: n << 58)
STEPS = st.lists(st.tuples(st.booleans(), st.lists(HASHES, max_size=30)), max_size=60)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["native", "pure"])
def tables(request: pytest.FixtureRequest) -> Any:
    """Set and map of one kind."""
    if request.param == "pure":
        return PurePythonBlockSet, PurePythonBlockMap
    core = native.core("block_table")
    if core is None:
        pytest.skip("the native core is not built here")
    return core.BlockSet, core.BlockMap


@SHARED
@given(steps=STEPS)
def test_a_set_is_a_set(tables: Any, steps: list[tuple[bool, list[int]]]) -> None:
    """Whatever goes in and out, in any order: as Python's set, and told in order."""
    table, model = tables[0](), dict[int, None]()
    for adding, blocks in steps:
        if adding:
            assert table.add_all(blocks) == [b for b in dict.fromkeys(blocks) if b not in model]
            model.update(dict.fromkeys(blocks))
        else:
            assert table.discard_all(blocks) == [b for b in dict.fromkeys(blocks) if b in model]
            for block in blocks:
                model.pop(block, None)
        assert len(table) == len(model)
        assert all((block in table) is (block in model) for block in blocks)
    assert sorted(array("Q", table.words())) == sorted(model)
    assert sorted(array("Q", tables[0](table.words()).words())) == sorted(model)


@SHARED
@given(steps=STEPS, width=st.sampled_from([1, 8, 16, 24, 40]), data=st.data())
def test_a_map_is_a_dictionary(tables: Any, steps: list[tuple[bool, list[int]]], width: int, data: Any) -> None:
    """Values of every width are kept; putting one again replaces it."""
    table, model = tables[1](width), dict[int, bytes]()
    for adding, blocks in steps:
        if adding:
            values = [data.draw(st.binary(min_size=width, max_size=width)) for _ in blocks]
            table.put_all(blocks, values)
            model.update(zip(blocks, values, strict=True))
        else:
            assert table.pop_all(tuple(blocks)) == [model.pop(block, None) for block in blocks]
        assert len(table) == len(model)
        assert table.get_all(blocks) == [table.get(b) for b in blocks] == [model.get(b) for b in blocks]
        assert all((block in table) is (block in model) for block in blocks)
    blocks_told, values_told = table.dump()
    cut = [values_told[start : start + width] for start in range(0, len(values_told), width)]
    assert dict(zip(array("Q", blocks_told), cut, strict=True)) == model
    again = tables[1](width, blocks_told, values_told)
    assert again.get_all(list(model)) == list(model.values())


def test_a_hundred_thousand_come_and_go(tables: Any) -> None:
    """As many as an engine holds, through many growths, with as many removals: none is lost, none stays."""
    blocks = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(100_000)]
    table, kept = tables[0](), tables[1](8)
    table.add_all(blocks)
    kept.put_all(blocks, [block.to_bytes(8, "big") for block in blocks])
    assert table.discard_all(blocks[::2]) == blocks[::2]
    assert kept.pop_all(blocks[::2]) == [block.to_bytes(8, "big") for block in blocks[::2]]
    assert kept.get_all(blocks[1::2]) == [block.to_bytes(8, "big") for block in blocks[1::2]]
    assert sorted(array("Q", table.words())) == sorted(blocks[1::2])
    assert not any(block in table or block in kept for block in blocks[::2])


@pytest.mark.parametrize("bad", [-1, 2**64, "x", None, 1.5])
def test_what_is_no_hash_is_refused(tables: Any, bad: Any) -> None:
    """Neither is taken for another number."""
    with pytest.raises((TypeError, OverflowError)):
        tables[0]().add_all([bad])
    with pytest.raises((TypeError, OverflowError)):
        tables[1](8).put_all([bad], [bytes(8)])


def test_what_does_not_fit_is_refused(tables: Any) -> None:
    """Words that are cut short, values of another width, more of one than of the other."""
    table, kept = tables
    for refused in (
        lambda: table(b"1234567"),
        lambda: kept(0),
        lambda: kept(1 << 20),
        lambda: kept(8).put_all([1], [b"short"]),
        lambda: kept(8).put_all([1, 2], [bytes(8)]),
        lambda: kept(8, bytes(8), bytes(9)),
        lambda: kept(8, bytes(16), bytes(8)),
    ):
        with pytest.raises(ValueError):
            refused()


@pytest.mark.parametrize("spread", [1, 1 << 32, 0x9E3779B97F4A7C15])
def test_no_array_grows_long(spread: int) -> None:
    """Ten thousand hashes, in sequence or spread: each array holds few, so that no search is long."""
    table = PurePythonBlockSet()
    table.add_all([number * spread % 2**64 for number in range(10_000)])
    assert max(map(len, table._arrays)) < 100


@pytest.mark.parametrize("kind", ["BlockSet", "BlockMap"])
def test_the_native_core_gives_its_memory_back(kind: str) -> None:
    """A thousand tables of a thousand hashes, made and dropped: nothing of them stays, nor of the values they took."""
    core = native.core("block_table")
    if core is None:
        pytest.skip("the native core is not built here")
    value, block = bytes(16), 2**63 + 12345
    held = sys.getrefcount(value), sys.getrefcount(block)
    for _ in range(1000):
        table = getattr(core, kind)()
        if kind == "BlockSet":
            table.add_all([block, 0])
            table.discard_all([block])
        else:
            table.put_all([block, 0], [value, value])
            table.pop_all([block, block])
    assert (sys.getrefcount(value), sys.getrefcount(block)) == held
