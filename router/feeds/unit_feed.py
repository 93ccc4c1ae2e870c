"""One unit's stream of batches, as a state machine: no I/O, no clock.

    WAITING --snapshot--> CATCHING UP --nothing left to read--> FOLLOWING --gap or newer epoch--> WAITING

A batch is applied when it is the next one of the epoch that is followed. What came before is a duplicate, what an
older epoch says is void, and anything else means that something was missed: the snapshot is read again. While waiting
or catching up, live batches are not kept: they are in the lane, which is read again from the snapshot's own position.
"""

from __future__ import annotations

from enum import StrEnum

from router.kv.wire import BlocksBatch, Heartbeat, Snapshot


class Verdict(StrEnum):
    """What to do with a message."""

    APPLY = "apply"
    DUPLICATE = "duplicate"
    STALE = "stale"
    """Of an earlier epoch: void."""
    GAP = "gap"
    """Batches of this epoch are missing: the snapshot is needed."""
    NEW_EPOCH = "new_epoch"
    """The cache began anew: what is known is void, and a snapshot is needed."""
    WAITING = "waiting"
    """A snapshot is on its way; the lane is read again after it."""


class UnitFeed:
    """Where the index stands with one unit.

    Attributes:
        epoch: The newest epoch heard of; 0 before any.
        sequence: The last batch applied.
        following: Whether live batches are applied.
        reason: Why a snapshot is waited for: `joined`, `gap`, `epoch`, `returned`.
    """

    __slots__ = ("epoch", "following", "reason", "sequence")

    def __init__(self) -> None:
        self.epoch = 0
        self.sequence = 0
        self.following = False
        self.reason = "joined"

    def on_batch(self, batch: BlocksBatch, *, catching_up: bool = False) -> Verdict:
        """Judge a batch; APPLY moves the position, GAP and NEW_EPOCH begin to wait.

        Args:
            catching_up: The batch is read again from the lane, after a snapshot.
        """
        if batch.epoch < self.epoch:
            return Verdict.STALE
        if batch.epoch > self.epoch:
            return self._begin_epoch(batch.epoch)
        if not self.following and not catching_up:
            return Verdict.WAITING
        if batch.sequence <= self.sequence:
            return Verdict.DUPLICATE
        if batch.sequence == self.sequence + 1:
            self.sequence = batch.sequence
            return Verdict.APPLY
        self.distrust("gap")
        return Verdict.GAP

    def on_heartbeat(self, heartbeat: Heartbeat) -> Verdict:
        """Judge a heartbeat: APPLY its load; GAP tells of a batch that never came (its load is good)."""
        if heartbeat.epoch < self.epoch:
            return Verdict.STALE
        if heartbeat.epoch > self.epoch:
            return self._begin_epoch(heartbeat.epoch)
        if self.following and heartbeat.sequence > self.sequence:
            self.distrust("gap")
            return Verdict.GAP
        return Verdict.APPLY

    def on_snapshot(self, snapshot: Snapshot) -> bool:
        """Take a snapshot's position, to catch up from; False when it is of an epoch that is over."""
        if snapshot.epoch < self.epoch:
            return False
        self.epoch = snapshot.epoch
        self.sequence = snapshot.sequence
        self.following = False
        return True

    def caught_up(self) -> None:
        """All that the lane held after the snapshot was applied: live batches follow on."""
        self.following = True

    def distrust(self, reason: str) -> None:
        """Wait for a snapshot, whatever came."""
        self.following = False
        self.reason = reason

    def _begin_epoch(self, epoch: int) -> Verdict:
        if self.epoch:
            self.distrust("epoch")
        self.epoch = epoch
        self.following = False
        return Verdict.NEW_EPOCH
