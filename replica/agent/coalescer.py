"""Changes that wait to be published, joined to as few as possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from router.kv.wire import Change

MAX_BATCH_BLOCKS = 8_192
"""Blocks in one batch: 64 KiB of hashes, so that no entry of a stream is large."""


class Coalescer:
    """A queue of changes in order, where neighbours of one kind become one.

    Attributes:
        blocks: Hashes that wait.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self._changes: list[tuple[Change, list[int]]] = []

    def __bool__(self) -> bool:
        return bool(self._changes)

    def add(self, changes: Iterable[Change]) -> None:
        """Append changes. A `cleared` makes all that waits before it needless."""
        for change in changes:
            if change.op == "cleared":
                self.drop()
                self._changes.append((change, []))
                continue
            last = self._changes[-1] if self._changes else None
            if last is None or not _alike(last[0], change):
                last = (change, [])
                self._changes.append(last)
            last[1].extend(change.hashes)
            self.blocks += len(change.hashes)

    def drop(self) -> None:
        """Forget what waits."""
        self._changes.clear()
        self.blocks = 0

    def take(self) -> list[tuple[Change, ...]]:
        """Return what waits as the changes of one batch each, and forget it."""
        batches: list[list[Change]] = [[]]
        room = MAX_BATCH_BLOCKS
        for change, hashes in self._changes:
            if not hashes:
                batches[-1].append(change)
                continue
            start = 0
            while start < len(hashes):
                if room == 0:
                    batches.append([])
                    room = MAX_BATCH_BLOCKS
                part = hashes[start : start + room]
                batches[-1].append(Change(change.op, change.tier, change.group, change.kind, part))
                start += len(part)
                room -= len(part)
        self.drop()
        return [tuple(batch) for batch in batches if batch]


def _alike(one: Change, other: Change) -> bool:
    return (one.op, one.tier, one.group, one.kind) == (other.op, other.tier, other.group, other.kind)
