"""Which watched blocks engines announced: what was stored, also where it was evicted again meanwhile.

The index tells what is held now. A prediction is judged by what was announced since: a block that came and went proves
the same as one that stayed. Only watched hashes are remembered, so memory is bounded by `MAX_WATCHES`.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_WATCHES = 4_096
"""Watches at once; beyond them requests go unobserved."""
SILENCE_S = 2.5
"""Agents tell that they live twice a second. One that was silent for so long hung, or had no Redis."""


class _Feed:
    """One unit's announcements from where they began to be whole; dead once one may have been missed."""

    __slots__ = ("alive", "batch_s", "heard_s", "read_s", "stored_blocks", "watched")

    def __init__(self, heard_s: float) -> None:
        self.alive = True
        self.heard_s = heard_s
        self.batch_s = self.read_s = float("-inf")
        self.stored_blocks = 0
        self.watched: dict[int, list[Watch]] = {}


class Watch:
    """Some blocks of one request at one unit.

    Attributes:
        hashes: The blocks, first block first.
        seen: Those of them that were announced as stored since.
    """

    __slots__ = ("_feed", "_stored_before", "hashes", "seen")

    def __init__(self, feed: _Feed, hashes: Sequence[int]) -> None:
        self._feed = feed
        self._stored_before = feed.stored_blocks
        self.hashes = hashes
        self.seen: set[int] = set()

    @property
    def whole(self) -> bool:
        """Whether no announcement was missed since it began."""
        return self._feed.alive

    @property
    def heard_s(self) -> float:
        """When the unit was last heard."""
        return self._feed.heard_s

    @property
    def read_s(self) -> float:
        """What its agent had read of the engine until then is known here."""
        return self._feed.read_s

    @property
    def batch_s(self) -> float:
        """When the engine made the newest event that came. Engines are read in order: what it made before came too."""
        return self._feed.batch_s

    @property
    def stored_blocks(self) -> int:
        """Blocks that the unit announced since the watch began, whichever they are."""
        return self._feed.stored_blocks - self._stored_before


class AnnouncedBlocks:
    """The owner of watches. Feeds tell it what they read, in order."""

    def __init__(self) -> None:
        self._feeds: dict[int, _Feed] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def heard(self, slot: int, at_s: float, *, behind_s: float = 0.0, batch: bool = False) -> None:
        """A unit that is followed without a gap was heard.

        Args:
            at_s: Clock seconds; everything that it published before is read.
            behind_s: How far its agent was behind its engine: one that hung, or whose Redis did, tells old news first.
            batch: It announced something, and did not only say that it lives.
        """
        feed = self._feeds.get(slot)
        if feed is not None and at_s - feed.heard_s > SILENCE_S:
            # What it tells now it may have read long ago, and what its engine did since it may not have read.
            self.interrupted(slot)
            feed = None
        if feed is None:
            feed = self._feeds[slot] = _Feed(at_s)
        feed.heard_s = max(feed.heard_s, at_s)
        feed.read_s = max(feed.read_s, at_s - behind_s)
        if batch:
            feed.batch_s = max(feed.batch_s, at_s - behind_s)

    def stored(self, slot: int, hashes: Sequence[int]) -> None:
        """A unit announced that it stored these blocks."""
        feed = self._feeds.get(slot)
        if feed is None:
            return
        feed.stored_blocks += len(hashes)
        watched = feed.watched
        if not watched or watched.keys().isdisjoint(hashes):
            return
        for block in hashes:
            for watch in watched.get(block, ()):
                watch.seen.add(block)

    def interrupted(self, slot: int) -> None:
        """Something may have been missed, the engine began anew, or the unit left: nothing follows from silence."""
        feed = self._feeds.pop(slot, None)
        if feed is not None:
            feed.alive = False

    def watch(self, slot: int, hashes: Sequence[int]) -> Watch | None:
        """Look out for blocks from now on, until `end`.

        Returns:
            None when the unit's feed is not whole now, or too much is watched already.
        """
        feed = self._feeds.get(slot)
        if feed is None or self._count >= MAX_WATCHES:
            return None
        watch = Watch(feed, hashes)
        for block in hashes:
            feed.watched.setdefault(block, []).append(watch)
        self._count += 1
        return watch

    def end(self, watch: Watch) -> None:
        """Look out no more. Once for each watch."""
        self._count -= 1
        watched = watch._feed.watched
        for block in watch.hashes:
            others = watched[block]
            others.remove(watch)
            if not others:
                del watched[block]
