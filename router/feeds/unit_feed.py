"""One unit's stream of batches, as a state machine: no I/O, no clock.

    WAITING --snapshot--> LOADING --nothing left to read--> FOLLOWING --gap, or a lease of a newer epoch--> WAITING

A batch is applied when it is the next one of the epoch that is followed. What came before is a duplicate, what an
older epoch says is void, and anything else means that something was missed: the snapshot is read again. While waiting
or loading, live batches are not kept: they are in the lane, which is read again from the snapshot's own position.

Which epoch is followed is the lease's word alone, which is signed where a secret is set. What a lane or a snapshot says
of a newer one is not believed, or one forged message would void a unit's blocks, and its true batches, for good.
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
    AHEAD = "ahead"
    """Of an epoch that no lease told of yet: void until one does."""
    GAP = "gap"
    """Batches of this epoch are missing: the snapshot is needed."""
    WAITING = "waiting"
    """A snapshot is on its way; the lane is read again after it."""


class UnitFeed:
    """Where the index stands with one unit.

    Attributes:
        epoch: The newest epoch that a lease told of; 0 before any.
        sequence: The last batch applied.
        loading: Whether a snapshot is being loaded; what ends it makes what is left of that snapshot void.
        following: Whether live batches are applied.
        reason: Why a snapshot is waited for: `joined`, `gap`, `epoch`, `returned`.
    """

    __slots__ = ("epoch", "following", "loading", "reason", "sequence")

    def __init__(self) -> None:
        self.epoch = 0
        self.sequence = 0
        self.loading = False
        self.following = False
        self.reason = "joined"

    def on_lease(self, epoch: int) -> bool:
        """Take the epoch of the unit's lease; True when the cache began anew: what is known is void."""
        if epoch <= self.epoch:
            return False
        if self.epoch:
            self.distrust("epoch")
        self.epoch = epoch
        self.sequence = 0
        return True

    def on_batch(self, batch: BlocksBatch, *, catching_up: bool = False) -> Verdict:
        """Judge a batch; APPLY moves the position, GAP begins to wait.

        Args:
            catching_up: The batch is read again from the lane, after a snapshot.
        """
        if batch.epoch != self.epoch:
            return Verdict.STALE if batch.epoch < self.epoch else Verdict.AHEAD
        if not (self.loading if catching_up else self.following):
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
        if heartbeat.epoch != self.epoch:
            return Verdict.STALE if heartbeat.epoch < self.epoch else Verdict.AHEAD
        if self.following and heartbeat.sequence > self.sequence:
            self.distrust("gap")
            return Verdict.GAP
        return Verdict.APPLY

    def on_snapshot(self, snapshot: Snapshot) -> bool:
        """Begin to load a snapshot; False when it is not of the epoch that is followed."""
        if snapshot.epoch != self.epoch:
            return False
        self.sequence = snapshot.sequence
        self.following = False
        self.loading = True
        return True

    def caught_up(self) -> None:
        """The snapshot and all that the lane held after it are applied: live batches follow on."""
        self.loading = False
        self.following = True

    def distrust(self, reason: str) -> None:
        """Wait for a snapshot, whatever came; one that is being loaded is void."""
        self.loading = self.following = False
        self.reason = reason
