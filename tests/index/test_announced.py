"""Watched announcements: what was stored counts, also when it is gone again."""

from __future__ import annotations

from router.index import announced as module
from router.index.announced import AnnouncedBlocks


def following(slot: int = 3, at_s: float = 1.0) -> AnnouncedBlocks:
    """A unit that is followed."""
    blocks = AnnouncedBlocks()
    blocks.heard(slot, at_s)
    return blocks


def test_what_was_stored_since_is_seen_once_and_for_all() -> None:
    """A block that is stored and evicted again was announced; other blocks count as movement alone."""
    blocks = following()
    watch = blocks.watch(3, [10, 11, 12])
    assert watch is not None
    blocks.stored(3, [11, 99])
    blocks.stored(3, [98])
    assert (watch.seen, watch.stored_blocks) == ({11}, 3)


def test_what_was_stored_before_or_elsewhere_is_not_seen() -> None:
    """A watch sees its own unit, from its beginning on."""
    blocks = following()
    blocks.heard(4, 1.0)
    blocks.stored(3, [10])
    watch = blocks.watch(3, [10])
    assert watch is not None
    blocks.stored(4, [10])
    assert (watch.seen, watch.stored_blocks) == (set(), 0)


def test_two_requests_that_leave_the_same_block_both_see_it() -> None:
    """Equal blocks of concurrent requests are announced once."""
    blocks = following()
    one, two = blocks.watch(3, [10]), blocks.watch(3, [10])
    assert one is not None
    assert two is not None
    blocks.stored(3, [10])
    assert one.seen == two.seen == {10}


def test_after_an_interruption_nothing_follows_from_silence() -> None:
    """Watches are not whole any more, and new ones wait until the unit is heard again."""
    blocks = following()
    watch = blocks.watch(3, [10])
    blocks.interrupted(3)
    assert watch is not None
    assert not watch.whole
    assert blocks.watch(3, [10]) is None
    blocks.heard(3, 2.0)
    again = blocks.watch(3, [10])
    assert again is not None
    assert again.whole
    assert not watch.whole


def test_a_unit_is_heard_as_of_the_latest_time() -> None:
    """An entry that lay about for long does not turn the clock back."""
    blocks = following(at_s=5.0)
    watch = blocks.watch(3, [10])
    blocks.heard(3, 4.0)
    assert watch is not None
    assert watch.heard_s == 5.0
    blocks.heard(3, 6.0)
    assert watch.heard_s == 6.0


def test_watches_are_bounded_and_ended_ones_leave_nothing() -> None:
    """The next request over the bound goes unobserved; memory is given back."""
    blocks = following()
    watches = [blocks.watch(3, [number, 7]) for number in range(module.MAX_WATCHES)]
    assert blocks.watch(3, [1]) is None
    for watch in watches:
        assert watch is not None
        blocks.end(watch)
    assert len(blocks) == 0
    assert blocks.watch(3, [1]) is not None
    assert len(blocks._feeds[3].watched) == 1
