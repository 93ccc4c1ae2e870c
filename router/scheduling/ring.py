"""The consistent-hash ring: the same owner for a prompt's first blocks in every router.

It depends on names alone, not on their order, this process or its hash seed, and moves 1/n of the keys when one of n
units comes or goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import xxhash
from uhashring import HashRing

POINTS_PER_UNIT = 160


class OwnerRing:
    """Names on a ring."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._ring = HashRing(nodes=[], hash_fn=_hash, vnodes=POINTS_PER_UNIT)

    def set_names(self, names: Iterable[str]) -> None:
        """Make these the ring's names; only what came or went is moved."""
        wanted = set(names)
        for name in sorted(self._names - wanted):
            self._ring.remove_node(name)
        for name in sorted(wanted - self._names):
            self._ring.add_node(name)
        self._names = wanted

    def preference(self, key: int) -> Iterator[str]:
        """Yield names in the order in which they own a key: the owner, then who would own it without the owner."""
        if self._names:
            yield from self._ring.iterate_nodes(f"{key:016x}")

    def owner(self, key: int) -> str | None:
        """Return the name that owns a key; None on an empty ring."""
        return next(self.preference(key), None)


def _hash(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode())
