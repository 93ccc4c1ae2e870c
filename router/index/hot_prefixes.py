"""The beginnings of prompts that come most often, with their tokens: what a replica with an empty cache lacks most.

A sample, bounded in entries and tokens. Of each prompt's chain a few depths are counted (four to an octave, so that a
common beginning is found but for a tenth of its length on average); counts halve with time. Tokens are kept of
beginnings that came at least twice, and of the deepest of them alone: a shallower one is its beginning. Prompts' tokens
are in memory here and nowhere else.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

HALF_LIFE_S = 300.0
MAX_ENTRIES = 8_192
MAX_TOKENS = 2_000_000
"""Tokens kept, 4 bytes each."""
MIN_USES = 1.5
"""A beginning that came less often of late is not worth computing ahead."""
DEPTHS = [count << octave for octave in range(2, 20) for count in (4, 5, 6, 7)]
"""Blocks of the beginnings that are counted."""

Key = tuple[str, int]
"""Model, as requests name it; hash of the beginning's last block."""


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A beginning that came often.

    Attributes:
        model: As requests name it: a model or an adapter.
        salt: The cache salt that its blocks are hashed with.
        token_ids: All of it, whole blocks.
        block: Hash of its last block, which names all before it too.
        fresh_tokens: Tokens of it that no other one of the same list brings along.
        uses: How often it came, counts of before halved with time.
    """

    model: str
    salt: str | None
    token_ids: Sequence[int]
    block: int
    fresh_tokens: int
    uses: float

    def __repr__(self) -> str:
        return f"HotPrefix(model={self.model!r}, tokens={len(self.token_ids)}, uses={self.uses:.1f})"


@dataclass(slots=True, eq=False)
class _Entry:
    """One beginning.

    Attributes:
        parent: The next shallower one.
        source: The one under which its tokens are kept, which is itself or a deeper one.
    """

    blocks: int
    tokens: int
    salt: str | None
    parent: Key | None
    uses: float
    at_s: float
    source: Key | None = None

    def uses_at(self, now_s: float) -> float:
        return self.uses * float(0.5 ** ((now_s - self.at_s) / HALF_LIFE_S))


class HotPrefixes:
    """Counts beginnings of prompts.

    Attributes:
        kept_tokens: Tokens that are kept now.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_tokens: int = MAX_TOKENS) -> None:
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._kept: OrderedDict[Key, array[int]] = OrderedDict()
        self.kept_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def saw(
        self,
        model: str,
        salt: str | None,
        chain: Sequence[int],
        token_ids: Sequence[int],
        block_size: int,
        now_s: float,
    ) -> None:
        """A prompt came.

        Args:
            chain: Its blocks' hashes; they tell of adapter and salt too.
            token_ids: Its tokens, of which the chain's blocks are made.
        """
        parent: Key | None = None
        known: list[Key] = []
        path: list[Key] = []
        entries = self._entries
        for blocks in DEPTHS[: bisect_right(DEPTHS, len(chain))]:
            key = (model, chain[blocks - 1])
            entry = entries.get(key)
            if entry is None:
                entries[key] = _Entry(blocks, blocks * block_size, salt, parent, 1.0, now_s)
            else:
                entry.uses = 1.0 + entry.uses_at(now_s)
                entry.at_s = now_s
                known.append(key)
            path.append(key)
            parent = key
        if known:
            self._keep(known, token_ids)
        # The shallow ones are used by all that use the deep ones: they are the last to go.
        for key in reversed(path):
            entries.move_to_end(key)
        while len(entries) > self._max_entries:
            key, _ = entries.popitem(last=False)
            self._drop(key)

    def hottest(
        self, limit: int, max_tokens: int, now_s: float, wanted: Callable[[str, int], bool] = lambda model, block: True
    ) -> list[HotPrefix]:
        """Return the beginnings that save most, uses times tokens, the best first.

        Args:
            limit: So many at most.
            max_tokens: Their tokens together at most; what two of them have in common counts once.
            wanted: Whether one is asked for, by its model and the hash of its last block.
        """
        heap = []
        for key, entry in self._entries.items():
            uses = entry.uses_at(now_s)
            if uses >= MIN_USES and entry.source in self._kept and wanted(*key):
                heap.append((-uses * entry.tokens, key, uses))
        heapq.heapify(heap)
        covered: dict[Key, int] = {}
        found: list[HotPrefix] = []
        while heap and len(found) < limit:
            believed, key, uses = heapq.heappop(heap)
            entry = self._entries[key]
            path = list(self._path(key))
            fresh_tokens = entry.tokens - max((covered[each] for each in path if each in covered), default=0)
            if fresh_tokens <= 0 or fresh_tokens > max_tokens:
                continue
            if heap and -uses * fresh_tokens > heap[0][0] and -uses * fresh_tokens > believed:
                heapq.heappush(heap, (-uses * fresh_tokens, key, uses))  # others brought a part of it along
                continue
            max_tokens -= fresh_tokens
            for each in path:
                covered[each] = self._entries[each].tokens
            ids = self._kept[entry.source or key][: entry.tokens]
            found.append(HotPrefix(key[0], entry.salt, ids, key[1], fresh_tokens, uses))
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._kept.clear()
        self.kept_tokens = 0

    def _path(self, key: Key) -> Iterator[Key]:
        at: Key | None = key
        while at is not None and at in self._entries:
            yield at
            at = self._entries[at].parent

    def _keep(self, known: Sequence[Key], token_ids: Sequence[int]) -> None:
        """Keep the tokens of the deepest beginning that came before; shallower ones have theirs there."""
        deepest = known[-1]
        if deepest in self._kept:
            self._kept.move_to_end(deepest)
        else:
            try:
                tokens = array("I", token_ids[: self._entries[deepest].tokens])
            except OverflowError:  # ids of 2^32 and more: of no tokenizer that is in use
                return
            self._kept[deepest] = tokens
            self.kept_tokens += len(tokens)
        for key in known:
            if key != deepest:
                self._drop(key)
            self._entries[key].source = deepest
        while self.kept_tokens > self._max_tokens:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Key) -> None:
        tokens = self._kept.pop(key, None)
        if tokens is not None:
            self.kept_tokens -= len(tokens)
