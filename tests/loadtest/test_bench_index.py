"""`make bench-index` measures what it says: a short run, whose figures are sane and complete."""

from __future__ import annotations

import pytest

from loadtest.bench.index import COLUMNS, line, measure
from loadtest.bench.index_data import CHAIN_BLOCKS, asked_chains, chains, events
from router.index.holders import NATIVE


def test_every_index_gets_the_same_chains() -> None:
    """Those looked up are among them, and events make them up."""
    once, again = dict(chains(5_000)), dict(chains(5_000))
    assert once == again
    assert len(once) == 5_000 // CHAIN_BLOCKS
    assert sorted(asked_chains(5_000)) == sorted(map(list, once.values()))
    assert [block for part in events(once[0]) for block in part] == list(once[0])


@pytest.mark.parametrize("native", ["auto", "no"])
def test_a_short_run_has_all_its_figures(native: str) -> None:
    """Each is over 0 and told under its name; the pure run is pure."""
    figures = measure("index_own", 20_000, 4, native=native)
    assert figures["name"] == ("Warmroute, pure Python" if native == "no" or NATIVE is None else "Warmroute, native")
    assert all(figures[key] > 0 for _, key, _ in COLUMNS)
    assert figures["short_whole_us"] > figures["short_us"]
    assert "-" not in line(figures).removeprefix(figures["name"])


def test_what_fails_is_told_in_its_own_words() -> None:
    """An interpreter without the library says so."""
    with pytest.raises(SystemExit, match="No module named"):
        measure("index_of_nobody", 512, 1)
