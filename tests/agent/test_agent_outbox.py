"""When what waits is due, and how far it is behind its engine; in virtual time."""

from __future__ import annotations

import pytest

from replica.agent.outbox import FEW_BLOCKS, Outbox
from router.kv.wire import Change

JOIN_S = 0.005


def stored(count: int = 1) -> list[Change]:
    return [Change("stored", 0, 0, 0, list(range(count)))]


def published(outbox: Outbox, now_s: float) -> None:
    """What is due goes out, and arrives."""
    assert outbox.due_s <= now_s
    outbox.take(now_s)
    outbox.batches = []


def test_the_first_change_after_a_quiet_time_waits_for_its_neighbours_alone() -> None:
    """Five milliseconds, however little it is."""
    outbox = Outbox(JOIN_S)
    assert not outbox
    outbox.add(stored(), 10.0, None)
    assert outbox.due_s == pytest.approx(10.005)
    published(outbox, 10.006)
    outbox.add(stored(), 11.0, None)
    assert outbox.due_s == pytest.approx(11.005)


def test_small_entries_are_spaced_and_large_ones_are_not() -> None:
    """A few blocks right after an entry wait up to 30 ms; as soon as they are many, they wait no longer."""
    outbox = Outbox(JOIN_S)
    outbox.add(stored(), 10.0, None)
    published(outbox, 10.005)
    outbox.add(stored(), 10.006, None)
    assert outbox.due_s == pytest.approx(10.035)
    outbox.add(stored(FEW_BLOCKS - 1), 10.008, None)
    assert outbox.due_s == pytest.approx(10.011)


def test_nothing_is_taken_while_something_is_on_its_way() -> None:
    """What failed is sent again as it was; what came since follows it."""
    outbox = Outbox(JOIN_S)
    outbox.add(stored(3), 10.0, None)
    assert outbox.take(10.005) == 10.0
    outbox.add(stored(4), 10.1, None)
    assert outbox.take(10.2) is None
    assert [len(change.hashes) for batch in outbox.batches for change in batch] == [3]
    outbox.batches = []
    assert outbox.take(10.3) == 10.1
    assert [len(change.hashes) for batch in outbox.batches for change in batch] == [4]


def test_a_batch_is_as_old_as_its_newest_event() -> None:
    """By the engine's own time where it tells one: an agent that hung reads old events as if they were new."""
    outbox = Outbox(JOIN_S)
    outbox.add(stored(), 10.0, 1_000.0)
    outbox.add(stored(), 10.004, 1_000.003)
    outbox.take(10.005)
    outbox.add(stored(), 10.006, 1_007.0)
    assert outbox.behind_s(10.005, 1_002.003) == pytest.approx(2.0)
    assert outbox.behind_s(13.004, 1_000.003) == pytest.approx(3.0)


def test_an_engine_without_times_or_whose_clock_is_ahead_counts_from_when_it_was_read() -> None:
    """Never younger than that."""
    for made_unix_s in (None, 9e9):
        outbox = Outbox(JOIN_S)
        outbox.add(stored(), 10.0, made_unix_s)
        outbox.take(10.005)
        assert outbox.behind_s(10.5, 1_000.0) == pytest.approx(0.5)


def test_what_waits_is_not_told_yet() -> None:
    """A heartbeat speaks for what was read before the oldest of it."""
    outbox = Outbox(JOIN_S)
    assert outbox.read_until_s(12.0) == 12.0
    outbox.add(stored(), 10.0, None)
    assert outbox.read_until_s(12.0) == 10.0
    outbox.take(12.0)
    assert outbox.read_until_s(12.0) == 12.0
    outbox.void()
    assert not outbox
