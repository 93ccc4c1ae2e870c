"""Changes that wait to be published, joined to as few as possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from router.kv.wire import Change

MAX_BATCH_BLOCKS = 8_192
"""Blocks in one batch: 64 KiB of hashes, so that no entry of a stream is large."""
MAX_COMPARED_BLOCKS = 64
"""Changes of more blocks are not looked through for joining what lies around them: there its frame weighs nothing."""


class Coalescer:
    """A queue of changes in order, where neighbours of one kind become one.

    So do those with one change between that has none of their blocks: prompts store, evict and store by turns.

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
            self._place(change).extend(change.hashes)
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

    def _place(self, change: Change) -> list[int]:
        """Return the hashes of the change that this one is joined to, of a new one where there is none."""
        for place, (earlier, hashes) in enumerate(reversed(self._changes[-2:])):
            if _alike(earlier, change):
                return hashes
            if place == 0 and not _commute(earlier, hashes, change):
                break
        self._changes.append((change, []))
        return self._changes[-1][1]


def _commute(earlier: Change, hashes: list[int], later: Change) -> bool:
    if earlier.op == "cleared":
        return False
    if (earlier.tier, earlier.group) != (later.tier, later.group):
        return True
    few = max(len(hashes), len(later.hashes)) <= MAX_COMPARED_BLOCKS
    return few and set(hashes).isdisjoint(later.hashes)


def _alike(one: Change, other: Change) -> bool:
    return (one.op, one.tier, one.group, one.kind) == (other.op, other.tier, other.group, other.kind)
