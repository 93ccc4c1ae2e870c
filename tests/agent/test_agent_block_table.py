"""Compact sets and maps behave as Python's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.agent.block_table import BlockMap, BlockSet

HASHES = st.integers(0, 2**64 - 1) | st.integers(0, 40) | st.integers(0, 60).map(lambda n: n << 58)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "drop"]), HASHES), max_size=400)


@settings(max_examples=200)
@given(STEPS)
def test_a_set_is_a_set(steps: list[tuple[str, int]]) -> None:
    """Whatever goes in and out, in any order: as Python's set."""
    table, model = BlockSet(), set[int]()
    for step, block in steps:
        if step == "add":
            assert table.add(block) is (block not in model)
            model.add(block)
        else:
            assert table.discard(block) is (block in model)
            model.discard(block)
        assert (block in table, len(table)) == (block in model, len(model))
    assert sorted(table) == sorted(table.words()) == sorted(model)


@settings(max_examples=200)
@given(STEPS, st.integers(1, 4), st.data())
def test_a_map_is_a_dictionary(steps: list[tuple[str, int]], words: int, data: Any) -> None:
    """Numbers of every width are kept; putting one again replaces it."""
    table, model = BlockMap(words), dict[int, int]()
    numbers = st.integers(0, 2 ** (64 * words) - 1) | st.integers(0, 2)
    for step, block in steps:
        if step == "add":
            model[block] = data.draw(numbers)
            table.put(block, model[block])
        else:
            assert table.pop(block) == model.pop(block, None)
        assert (table.get(block), block in table, len(table)) == (model.get(block), block in model, len(model))
    assert dict(table.items()) == model
    assert sorted(table.low_words()) == sorted(number & 2**64 - 1 for number in model.values() if number)


@pytest.mark.parametrize("spread", [1, 1 << 32, 0x9E3779B97F4A7C15])
def test_no_array_grows_long(spread: int) -> None:
    """Ten thousand hashes, in sequence or spread: each array holds few, so that no search is long."""
    table = BlockSet()
    for number in range(10_000):
        table.add(number * spread % 2**64)
    assert max(map(len, table._arrays)) < 100
