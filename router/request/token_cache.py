"""What was tokenised and hashed before, bounded in bytes, the longest unused forgotten first.

Three kinds of entries share one bound: the token ids of a piece of text, the block hashes that a piece adds to the
chain of what stands before it, and whole prompts (`router.request.memo`). Keys are digests (xxh3, 128 bits, under a
seed that is random in each process), so the texts themselves are not kept.
"""

from __future__ import annotations

import secrets
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import xxhash

from router.request.reasons import NotUnderstoodError, Reason

Piece = TypeVar("Piece")
"""Text, or what else is tokenised to ids by itself."""
DEFAULT_BYTES = 192 * 2**20
_PIECE_BYTES = 310  # a key, its place in the table, an empty array (measured with tracemalloc)
_LINK_BYTES = 410  # the same of a link without hashes
_TOKEN_BYTES = 4
_BLOCK_BYTES = 44  # a place in a list and a number of 64 bits
_LARGEST_SHARE = 8  # an entry over this part of the bound is not kept: it would push out much for little


@dataclass(frozen=True, slots=True)
class Link:
    """What one piece of text adds to a chain.

    Attributes:
        hashes: Identities of the blocks that end in this piece.
        digest: Digest of the last block that ended by then; the chain's root where none did.
    """

    hashes: Sequence[int]
    digest: bytes


class TokenCache:
    """Thread-safe. One for all models of a process.

    Attributes:
        limit_bytes: What the entries may take together, by estimate; 0 keeps nothing.
        hits, misses: Pieces of text that were asked for.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.hits = 0
        self.misses = 0
        self._used_bytes = 0
        self._entries: OrderedDict[bytes, tuple[int, object]] = OrderedDict()
        self._lock = threading.Lock()
        self._seed = secrets.randbits(64)

    @property
    def used_bytes(self) -> int:
        """What the entries take, by estimate."""
        return self._used_bytes

    def keys(self, pieces: Iterable[bytes | memoryview], namespace: int) -> list[bytes]:
        """Return the keys of pieces of text.

        Args:
            pieces: Texts in UTF-8.
            namespace: A number for what the ids depend on besides the text: the tokenizer.
        """
        digest, seed = xxhash.xxh3_128_digest, self._seed ^ namespace
        return [digest(piece, seed) for piece in pieces]

    def known(self, keys: Sequence[bytes]) -> list[array[int]]:
        """Return the ids of the pieces that are known without a gap from the first one on."""
        known = []
        for ids in self._get(keys):
            if not isinstance(ids, array):
                break
            known.append(ids)
        return known

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Return the places of the keys that nothing is kept under."""
        with self._lock:
            return [place for place, key in enumerate(keys) if key not in self._entries]

    def encode(
        self, pieces: Sequence[Piece], keys: Sequence[bytes], encode: Callable[[list[Piece]], Sequence[Sequence[int]]]
    ) -> list[array[int]]:
        """Return the ids of pieces; those that are not known are tokenised, all in one call of `encode`.

        Raises:
            NotUnderstoodError: TOKENIZER_ERROR.
        """
        known = self._get(keys)
        missing = [place for place, ids in enumerate(known) if ids is None]
        self.hits += len(keys) - len(missing)
        self.misses += len(missing)
        if missing:
            try:
                fresh = [
                    ids if isinstance(ids, array) else array("I", ids)
                    for ids in encode([pieces[place] for place in missing])
                ]
            except OverflowError:  # ids of 2^32 and more: of no tokenizer that is in use
                raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None
            for place, ids in zip(missing, fresh, strict=True):
                known[place] = ids
            self._put(
                (keys[place], _PIECE_BYTES + _TOKEN_BYTES * len(ids), ids)
                for place, ids in zip(missing, fresh, strict=True)
            )
        return [ids for ids in known if isinstance(ids, array)]

    def links(self, keys: Sequence[bytes]) -> list[Link]:
        """Return the links that are known without a gap from the first key on."""
        known: list[Link] = []
        for link in self._get(keys):
            if not isinstance(link, Link):
                break
            known.append(link)
        return known

    def remember(self, links: Iterable[tuple[bytes, Link]]) -> None:
        """Keep links under their keys."""
        self._put((key, _LINK_BYTES + _BLOCK_BYTES * len(link.hashes), link) for key, link in links)

    def find(self, key: bytes) -> object:
        """Return what `keep` was given under a key; None when it is not there."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
        return entry[1]

    def keep(self, key: bytes, value: object, cost_bytes: int) -> None:
        """Keep something of another kind; `cost_bytes` is what it takes, its key not counted."""
        self._put([(key, _PIECE_BYTES + cost_bytes, value)])

    def grow(self, key: bytes, value: object, more_bytes: int) -> None:
        """What was kept under a key takes more by now; nothing happens where it is not there any more."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[1] is value:
                self._entries[key] = (entry[0] + more_bytes, value)
                self._used_bytes += more_bytes
                self._forget_over()

    def _get(self, keys: Sequence[bytes]) -> list[object]:
        entries = self._entries
        with self._lock:
            found = [entries.get(key) for key in keys]
            # The first keys are the last to be forgotten: without them the later ones are of no use.
            for key, entry in zip(reversed(keys), reversed(found), strict=True):
                if entry is not None:
                    entries.move_to_end(key)
        return [None if entry is None else entry[1] for entry in found]

    def _put(self, items: Iterable[tuple[bytes, int, object]]) -> None:
        largest = self.limit_bytes // _LARGEST_SHARE
        kept = [(key, (cost, value)) for key, cost, value in items if cost <= largest]
        with self._lock:
            for key, entry in reversed(kept):
                before = self._entries.pop(key, None)
                self._entries[key] = entry
                self._used_bytes += entry[0] - (0 if before is None else before[0])
            self._forget_over()

    def _forget_over(self) -> None:
        while self._used_bytes > self.limit_bytes:
            _, (cost, _) = self._entries.popitem(last=False)
            self._used_bytes -= cost
