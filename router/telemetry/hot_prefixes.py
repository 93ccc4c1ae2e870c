"""The prefixes that save most lately, by the hash of their last block.

A request that was served with a match counts for the longest block that it hit. What all requests share of a system
prompt ends in one block, so it comes up as one prefix, with its length. When the table is full all counts are halved
and what is left of nothing goes: so what was hot and is not any more gives way, and each request costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CAPACITY = 2_048
"""Prefixes that are followed."""


@dataclass(slots=True, eq=False)
class HotPrefix:
    """One prefix.

    Attributes:
        block: Hash of its last block.
        model: As requests named it.
        tokens: Its length.
        requests: That hit it lately.
        saved_tokens: What they read from caches of it.
    """

    block: int
    model: str
    tokens: int
    requests: int = 0
    saved_tokens: int = 0


class HotPrefixes:
    """Follows the prefixes that come most often.

    Args:
        capacity: Prefixes followed, 2 or more.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._followed: dict[tuple[str, int], HotPrefix] = {}

    def hit(self, model: str, chain: Sequence[int], hit_tokens: int, block_size: int) -> None:
        """A request read so many tokens from a cache, or was predicted to."""
        blocks = min(hit_tokens // block_size, len(chain))
        if blocks == 0:
            return
        key = (model, chain[blocks - 1])
        found = self._followed.get(key)
        if found is None:
            if len(self._followed) >= self._capacity:
                self._halve()
            found = self._followed[key] = HotPrefix(key[1], model, blocks * block_size)
        found.requests += 1
        found.saved_tokens += found.tokens

    def hottest(self, count: int) -> list[HotPrefix]:
        """Return up to `count`, those that saved most first."""
        return sorted(self._followed.values(), key=lambda prefix: -prefix.saved_tokens)[: max(0, count)]

    def _halve(self) -> None:
        for prefix in self._followed.values():
            prefix.requests //= 2
            prefix.saved_tokens //= 2
        left = [item for item in self._followed.items() if item[1].requests]
        left.sort(key=lambda item: -item[1].saved_tokens)
        self._followed = dict(left[: self._capacity // 2])
