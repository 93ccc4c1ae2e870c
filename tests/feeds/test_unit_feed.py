"""The state machine of one unit's batches."""

from __future__ import annotations

import pytest

from router.feeds.unit_feed import UnitFeed, Verdict
from router.kv.wire import BlocksBatch, Heartbeat, Snapshot


def batch(sequence: int, epoch: int = 1) -> BlocksBatch:
    return BlocksBatch("r0/0", epoch, sequence, ())


@pytest.fixture
def following() -> UnitFeed:
    """A feed that follows epoch 1 and has applied batch 5."""
    feed = UnitFeed()
    assert feed.on_lease(1)
    assert feed.on_snapshot(Snapshot("r0/0", 1, 5, "0-0", []))
    feed.caught_up()
    return feed


def test_the_next_batch_is_applied_once(following):
    """Position + 1 is applied; the same and earlier ones are duplicates."""
    assert following.on_batch(batch(6)) is Verdict.APPLY
    assert following.on_batch(batch(6)) is Verdict.DUPLICATE
    assert following.on_batch(batch(2)) is Verdict.DUPLICATE
    assert following.sequence == 6


def test_a_gap_waits_for_a_snapshot(following):
    """After a hole nothing is applied, not even what would follow it, until a snapshot came."""
    assert following.on_batch(batch(7)) is Verdict.GAP
    assert following.on_batch(batch(8)) is Verdict.WAITING
    assert following.on_batch(batch(6)) is Verdict.WAITING
    assert following.reason == "gap"
    assert following.on_snapshot(Snapshot("r0/0", 1, 8, "0-0", []))
    assert following.on_batch(batch(9)) is Verdict.WAITING
    assert following.on_batch(batch(9), catching_up=True) is Verdict.APPLY
    following.caught_up()
    assert following.on_batch(batch(10)) is Verdict.APPLY


def test_an_older_epoch_is_void(following):
    """Batches, heartbeats and snapshots of an epoch that is over change nothing."""
    assert following.on_lease(2)
    assert not following.on_lease(1)
    assert following.reason == "epoch"
    assert following.on_batch(batch(6, epoch=1)) is Verdict.STALE
    assert following.on_heartbeat(Heartbeat("r0/0", 1, 6)) is Verdict.STALE
    assert not following.on_snapshot(Snapshot("r0/0", 1, 6, "0-0", []))


def test_a_heartbeat_of_an_unseen_batch_is_a_gap(following):
    """A heartbeat names the last batch: one that never came shows so, without another batch."""
    assert following.on_heartbeat(Heartbeat("r0/0", 1, 5)) is Verdict.APPLY
    assert following.on_heartbeat(Heartbeat("r0/0", 1, 6)) is Verdict.GAP
    assert not following.following


def test_a_hole_in_the_tail_keeps_it_waiting(following):
    """A snapshot too old for what the lane still holds does not make the unit current."""
    following.distrust("returned")
    assert following.on_snapshot(Snapshot("r0/0", 1, 5, "0-0", []))
    assert following.on_batch(batch(9), catching_up=True) is Verdict.GAP
    assert not following.following


def test_only_a_lease_begins_an_epoch(following):
    """A batch, heartbeat or snapshot of an epoch that no lease told of changes nothing; the true ones go on."""
    assert following.on_batch(batch(1, epoch=2**63 - 1)) is Verdict.AHEAD
    assert following.on_heartbeat(Heartbeat("r0/0", 2**63 - 1, 0)) is Verdict.AHEAD
    assert not following.on_snapshot(Snapshot("r0/0", 2**63 - 1, 0, "0-0", []))
    assert following.on_batch(batch(6)) is Verdict.APPLY


def test_an_epoch_begins_from_nothing(following):
    """Its batches are numbered from 1: none of them is taken for a duplicate of the epoch before."""
    assert following.on_lease(2)
    assert following.on_snapshot(Snapshot("r0/0", 2, 0, "0-0", []))
    following.caught_up()
    assert following.on_batch(batch(1, epoch=2)) is Verdict.APPLY


@pytest.mark.parametrize("end", [lambda feed: feed.on_lease(2), lambda feed: feed.distrust("returned")])
def test_a_load_ends_with_its_epoch_or_its_lane(following, end):
    """What is left of a snapshot does not count once a newer epoch began or the lane was lost."""
    following.distrust("gap")
    assert following.on_snapshot(Snapshot("r0/0", 1, 5, "0-0", []))
    assert following.loading
    end(following)
    assert not following.loading
    assert following.on_batch(batch(6), catching_up=True) is not Verdict.APPLY
