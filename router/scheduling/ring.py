"""The consistent-hash ring: the same owner for a prompt's first blocks in every router.

It depends on names alone, not on their order, this process or its hash seed, and moves 1/n of the keys when one of n
units comes or goes.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence

import xxhash
from uhashring import HashRing

POINTS_PER_UNIT = 160
MAX_CHANGES_IN_PLACE = 3
MAX_KNOWN_OWNERS = 4_096
"""Keys whose owner is remembered: the beginnings of prompts that come again and again."""


class OwnerRing:
    """Names on a ring, each at `points` places."""

    def __init__(self, names: Iterable[str] = (), points: int = POINTS_PER_UNIT) -> None:
        self.names: frozenset[str] = frozenset()
        self._points = points
        self._ring = _build((), points)
        self._keys: list[int] = []
        self._owners: list[str] = []
        self._known: dict[int, str | None] = {}
        self.set_names(names)

    def set_names(self, names: Iterable[str]) -> None:
        """Make these the ring's names.

        Few changes are made in place; for many it is quicker to build the ring anew (about 0.1 ms a name, on the
        event loop).
        """
        wanted = frozenset(names)
        gone, new = self.names - wanted, wanted - self.names
        if len(gone) + len(new) > MAX_CHANGES_IN_PLACE:
            self._ring = _build(sorted(wanted), self._points)
        else:
            for name in sorted(gone):
                self._ring.remove_node(name)
            for name in sorted(new):
                self._ring.add_node(name)
        self.names = wanted
        # The library walks its ring by generators: to find one name alone that takes ten times as long.
        points: list[tuple[int, str]] = self._ring.get_points()
        self._keys = [key for key, _ in points]
        self._owners = [name for _, name in points]
        self._known.clear()

    def preference(self, key: int) -> Iterator[str]:
        """Yield names in the order in which they own a key: the owner, then who would own it without the owner."""
        if self.names:
            yield from self._ring.iterate_nodes(f"{key:016x}")

    def owner(self, key: int) -> str | None:
        """Return the name that owns a key; None on an empty ring."""
        if key in self._known:
            return self._known[key]
        place = bisect(self._keys, _hash(f"{key:016x}"))
        owner = self._owners[place % len(self._owners)] if self._owners else None
        if len(self._known) >= MAX_KNOWN_OWNERS:
            self._known.clear()
        self._known[key] = owner
        return owner


def _build(names: Sequence[str], points: int) -> HashRing:
    return HashRing(nodes=list(names), hash_fn=_hash, vnodes=points)


def _hash(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode())
