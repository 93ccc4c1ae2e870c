"""What routers tell each other of their load is read with care: anybody may have written it."""

from __future__ import annotations

import math

import msgspec
import pytest

from router.kv import router_load
from router.kv.router_load import Row


def test_what_is_written_is_read() -> None:
    """Name, units, and what is told of them."""
    rows = [Row("r0/0", 2, 128.0, 0.5, 4096.0), Row("r1/0", 1, 0.0)]
    read = router_load.decode(router_load.encode("a/0", rows))
    assert read is not None
    assert (read.router, read.rows) == ("a/0", rows)


def test_more_units_than_fit_are_left_out() -> None:
    """An entry is bounded whatever the fleet's size."""
    data = router_load.encode("a/0", [Row(f"r{number}/0", 1, 1.0) for number in range(router_load.MAX_ROWS + 9)])
    read = router_load.decode(data)
    assert read is not None
    assert len(read.rows) == router_load.MAX_ROWS


@pytest.mark.parametrize(
    "fields",
    [
        [3, "a", []],
        ["1", "a", []],
        [1, "", []],
        [1, 7, []],
        [1, "a" * 300, []],
        [1, "a", [["r0/0", -1, 0.0]]],
        [1, "a", [["r0/0", 1.5, 0.0]]],
        [1, "a", [["r0/0", 1, -1.0]]],
        [1, "a", [["r0/0", 1, math.inf]]],
        [1, "a", [["r0/0", 1, math.nan]]],
        [1, "a", [["r0/0", True, 1.0]]],
        [1, "a", [["r0/0", 1, 1.0, math.nan]]],
        [1, "a", [["r0/0", 1, 1.0, 0.0, -1.0]]],
        [1, "a", [["r0/0", 1, 1.0]] * (router_load.MAX_ROWS + 1)],
        [1, "a", [["r0/0", 10**9, 1.0]]],
        [1, "a", [[7, 1, 1.0]]],
        [1, "a", [["r0/0", 1]]],
        [1, "a", 5],
        [1, "a"],
        5,
    ],
)
def test_what_is_no_entry_is_left_out(fields: object) -> None:
    """Wherever it is wrong."""
    assert router_load.decode(msgspec.msgpack.encode(fields)) is None


def test_rubbish_and_huge_entries_are_left_out() -> None:
    """Without reading all of them."""
    assert router_load.decode(b"\xc1") is None
    assert router_load.decode(bytes(router_load.MAX_BYTES + 1)) is None
