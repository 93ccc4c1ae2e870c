"""Cache groups that keep the ends of prefixes alone: a match ends where vLLM's own search would let it end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.feeds.roster import tails_of
from router.index.matches import Match, Tail
from router.index.prefix_index import CPU, PrefixIndex

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/group_ends.json").read_text())
FULL, WINDOW, STATES = 0, 1, 2


def _hash(place: int) -> int:
    return 1_000 + place


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_ends_are_those_of_the_engine(case: dict[str, Any]) -> None:
    """Whatever a group holds: the same tokens as the engine's managers of sliding windows and Mamba states find."""
    tokens = 1 if case["window"] is None else max(1, case["window"] - 1)
    ((_, stride, blocks),) = tails_of({1: (tokens, GOLDEN["block_size"])}, GOLDEN["block_size"])
    held = set(map(_hash, case["held"]))
    tail = Tail(lambda block: 0 if block in held else None, stride, blocks)
    hashes = [_hash(place) for place in range(case["length"])]
    assert tail.last_end(hashes, len(hashes)) * GOLDEN["block_size"] == case["tokens"]


def _index(full: range, window: set[int], states: set[int] | None = None) -> PrefixIndex:
    index = PrefixIndex()
    index.store(0, map(_hash, full), group=FULL)
    index.store_tail(0, map(_hash, window), group=WINDOW)
    tails = [(WINDOW, 1, 2)]
    if states is not None:
        index.store_tail(0, map(_hash, states), group=STATES)
        tails.append((STATES, 1, 1))
    index.set_tails(0, tails)
    return index


CHAIN = [_hash(place) for place in range(12)]


def test_a_window_that_lost_its_end_cuts_the_match() -> None:
    """Full attention holds ten blocks, the window only those before the sixth."""
    index = _index(range(10), {4, 5, 8})
    assert index.match(CHAIN, [0]) == {0: Match(6, 6)}
    assert index.leading(0, CHAIN) == 6


def test_a_match_ends_where_every_group_lets_it() -> None:
    """The window would do at the tenth block, the states at the eighth: both do at the fourth."""
    index = _index(range(10), {2, 3, 8, 9}, {3, 7})
    assert index.leading(0, CHAIN) == 4


def test_without_any_end_nothing_matches() -> None:
    """The group's blocks are gone: the engine computes all of it anew."""
    index = _index(range(10), {4, 5})
    index.remove(0, [_hash(4), _hash(5)], group=WINDOW)
    assert index.match(CHAIN, [0]) == {}
    assert index.blocks_of(0) == 10


def test_a_group_of_unknown_reach_does_not_count() -> None:
    """What is not known of a group takes nothing from the match."""
    index = _index(range(10), {4})
    index.set_tails(0, ())
    assert index.leading(0, CHAIN) == 10


def test_other_units_are_not_touched() -> None:
    """A unit of full attention alone beside it keeps its whole match, and clearing one leaves the other."""
    index = _index(range(10), {4, 5})
    index.store(1, CHAIN, tier=CPU)
    assert index.match(CHAIN, [0, 1]) == {0: Match(6, 6), 1: Match(12, 0, 12)}
    assert index.dump(0) >= {(_hash(4), 0, FULL), (_hash(4), 0, WINDOW)}
    index.clear(0)
    while index.sweep():
        pass
    assert (index.dump(0), index.blocks_of(0), index.total_blocks) == (set(), 0, 12)


def test_what_lies_farther_away_is_cut_too() -> None:
    """Six blocks on the GPU and four on the CPU, and an end after the eighth: two of the four are of use."""
    index = _index(range(6), {6, 7})
    index.store(0, map(_hash, range(6, 10)), tier=CPU, group=FULL)
    assert index.match(CHAIN, [0]) == {0: Match(8, 6, 2)}


def test_groups_of_larger_blocks() -> None:
    """Full attention by blocks of two pieces, states by blocks of four: a match ends at both."""
    index = PrefixIndex()
    index.set_strides(0, [(FULL, 2)])
    index.store(0, [_hash(place) for place in (1, 3, 5, 7, 9)], group=FULL)
    index.store_tail(0, [_hash(3)], group=WINDOW)
    index.set_tails(0, [(WINDOW, 4, 1)])
    assert index.leading(0, CHAIN) == 4


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.sets(st.integers(0, 11)), st.sampled_from([1, 2, 3]), st.integers(2, 4)), max_size=3),
)
def test_any_holding_is_as_a_naive_search_finds_it(full: int, groups: list[tuple[set[int], int, int]]) -> None:
    """The longest prefix that full attention holds and that every other group has the last blocks of."""
    index = PrefixIndex()
    index.store(0, CHAIN[:full])
    for group, (held, _, _) in enumerate(groups, 1):
        index.store_tail(0, map(_hash, held), group=group)
    index.set_tails(0, [(group, stride, blocks) for group, (_, stride, blocks) in enumerate(groups, 1)])

    def may_end(end: int, held: set[int], stride: int, blocks: int) -> bool:
        needed = range(end - 1, max(-1, end - 1 - stride * blocks), -stride)
        return end % stride == 0 and all(place in held for place in needed)

    expected = max(end for end in range(full + 1) if all(may_end(end, *group) for group in groups))
    assert index.leading(0, CHAIN) == expected


def test_sizes_that_no_chain_names_are_left_out() -> None:
    """Blocks of 24 tokens end nowhere in a chain by 16; a window of 64 tokens needs four blocks before an end."""
    assert tails_of({0: (1, 24), 1: (63, 16), 2: (1, 64), 3: (0, 16)}, 16) == ((1, 1, 4), (2, 4, 1))
