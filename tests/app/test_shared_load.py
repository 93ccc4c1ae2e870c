"""Workers hear what the others have in flight."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

from router import shared_load
from router.shared_load import Others, Row, SharedLoad


@pytest.fixture
def three() -> Iterator[list[SharedLoad]]:
    """Three workers of one router."""
    descriptor = shared_load.create(3)
    workers = [SharedLoad(descriptor, number, 3) for number in range(3)]
    yield workers
    for worker in workers:
        worker.close()
    os.close(descriptor)


def heard(worker: SharedLoad, *names: str) -> list[tuple[int, float]]:
    """What a worker hears of these units."""
    others = worker.others()
    assert others is not None
    found = [others.get(worker.key(name), Others()) for name in names]
    return [(item.requests, item.tokens) for item in found]


def row(name: str, requests: int, tokens: float, head_s: float = math.inf, computed_tokens: float = 0.0) -> Row:
    """What a worker tells of a unit."""
    return name, requests, tokens, head_s, computed_tokens


def test_what_others_have_adds_up_and_ones_own_does_not_count(three: list[SharedLoad]) -> None:
    """The last that each said is what counts."""
    one, two, third = three
    one.publish([row("a/0", 5, 1000.0), row("b/0", 1, 0.5)])
    two.publish([row("a/0", 2, 10.0)])
    assert heard(third, "a/0", "b/0", "c/0") == [(7, 1010.0), (1, 0.5), (0, 0.0)]
    assert heard(one, "a/0", "b/0") == [(2, 10.0), (0, 0.0)]
    two.publish([])
    assert heard(third, "a/0") == [(5, 1000.0)]


def test_nothing_new_is_told_apart(three: list[SharedLoad]) -> None:
    """So that nobody works for nothing."""
    one, two, _ = three
    one.publish([row("a/0", 1, 1.0)])
    assert two.others() is not None
    one.publish([row("a/0", 1, 1.0)])
    assert two.others() is None


def test_what_a_dead_worker_told_can_be_taken_back() -> None:
    """By its supervisor, and the next one in its seat is heard."""
    descriptor = shared_load.create(2)
    dead, other = SharedLoad(descriptor, 0, 2), SharedLoad(descriptor, 1, 2)
    dead.publish([row("a/0", 3, 3.0)])
    assert heard(other, "a/0") == [(3, 3.0)]
    shared_load.clear(descriptor, 0, 2)
    assert heard(other, "a/0") == [(0, 0.0)]
    following = SharedLoad(descriptor, 0, 2)
    following.publish([row("a/0", 1, 1.0)])
    assert heard(other, "a/0") == [(1, 1.0)]
    for worker in (dead, other, following):
        worker.close()
    os.close(descriptor)


def test_a_table_that_is_being_written_is_not_read(three: list[SharedLoad]) -> None:
    """What was heard before holds until it is complete."""
    one, two, _ = three
    one.publish([row("a/0", 1, 1.0)])
    assert heard(two, "a/0") == [(1, 1.0)]
    version, rows = shared_load._HEAD.unpack_from(one._memory, one._own)
    shared_load._HEAD.pack_into(one._memory, one._own, version + 1, rows)
    assert two.others() is None


def test_more_units_than_find_a_place_do_no_harm(three: list[SharedLoad]) -> None:
    """The first ones are told."""
    one, two, _ = three
    one.publish(row(f"{number}/0", 1, 1.0) for number in range(shared_load.MAX_UNITS + 5))
    assert heard(two, "0/0", f"{shared_load.MAX_UNITS + 1}/0") == [(1, 1.0), (0, 0.0)]


def test_the_oldest_prompt_and_all_that_was_computed_are_told(three: list[SharedLoad]) -> None:
    """Of all the other workers."""
    one, two, third = three
    one.publish([row("a/0", 1, 5.0, 7.5, 100.0)])
    two.publish([row("a/0", 1, 5.0, 3.5, 20.0)])
    others = third.others()
    assert others is not None
    assert others[third.key("a/0")] == Others(2, 10.0, 3.5, 120.0)
