"""Sets and maps of block hashes at a few bytes each, where Python's own take a hundred. Pure.

A hash lies in one of many small arrays of 64-bit words, chosen by its bits; an array is searched through, a microsecond
for the dozen that are in it. The table grows by linear hashing: whenever it is fuller than it should be, one array is
split in two, so no call ever has to move all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_FULL = 14
"""Hashes in an array, on average, before one is split: fewer cost more memory, more cost more time."""
_WORD = (1 << 64) - 1


class BlockSet:
    """A set of unsigned 64-bit hashes."""

    __slots__ = ("_arrays", "_mask", "_size", "_split")

    def __init__(self) -> None:
        self._arrays = [array("Q")]
        self._mask = 0
        """Of the arrays at the last doubling."""
        self._split = 0
        """Arrays before this one are split already: their hashes are told apart by one bit more."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return block in self._arrays[self._place(block)]

    def __iter__(self) -> Iterator[int]:
        for words in self._arrays:
            yield from words

    def add(self, block: int) -> bool:
        """Put a hash in; return whether it is new."""
        words = self._arrays[self._place(block)]
        if block in words:
            return False
        words.append(block)
        self._size += 1
        if self._size > _FULL * len(self._arrays):
            self._grow()
        return True

    def discard(self, block: int) -> bool:
        """Take a hash out; return whether it was in."""
        words = self._arrays[self._place(block)]
        try:
            where = words.index(block)
        except ValueError:
            return False
        last = words.pop()
        if where < len(words):
            words[where] = last
        self._size -= 1
        return True

    @classmethod
    def of(cls, data: bytes) -> BlockSet:
        """Return the set of the hashes that `words` gave, as bytes."""
        table = cls()
        for block in array("Q", data):
            table.add(block)
        return table

    def words(self) -> array[int]:
        """Return all hashes as one array."""
        found = array("Q")
        for words in self._arrays:
            found.extend(words)
        return found

    def _place(self, block: int) -> int:
        mixed = block ^ block >> 31
        place = mixed & self._mask
        return place if place >= self._split else mixed & (self._mask << 1 | 1)

    def _grow(self) -> None:
        old = self._arrays[self._split]
        bit = self._mask + 1
        self._arrays[self._split] = array("Q", [block for block in old if not (block ^ block >> 31) & bit])
        self._arrays.append(array("Q", [block for block in old if (block ^ block >> 31) & bit]))
        self._split += 1
        if self._split == bit:
            self._mask, self._split = self._mask << 1 | 1, 0


class BlockMap:
    """A map from unsigned 64-bit hashes to unsigned numbers of a fixed width.

    Args:
        words: Width of the numbers, in words of 64 bits.
    """

    __slots__ = ("_keys", "_mask", "_numbers", "_size", "_split", "_words")

    def __init__(self, words: int = 2) -> None:
        self._keys = [array("Q")]
        self._numbers = [array("Q")]
        self._words = words
        self._mask = self._split = self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return block in self._keys[self._place(block)]

    def get(self, block: int) -> int | None:
        """Return a hash's number, or None."""
        place = self._place(block)
        try:
            where = self._keys[place].index(block)
        except ValueError:
            return None
        return self._read(self._numbers[place], where)

    def put(self, block: int, number: int) -> None:
        """Let a hash have this number, 0 <= number < 2 ** (64 * words)."""
        place = self._place(block)
        keys, numbers = self._keys[place], self._numbers[place]
        words = self._words
        parts = [number >> 64 * index & _WORD for index in range(words)]
        try:
            where = keys.index(block)
        except ValueError:
            keys.append(block)
            numbers.extend(parts)
            self._size += 1
            if self._size > _FULL * len(self._keys):
                self._grow()
        else:
            numbers[where * words : (where + 1) * words] = array("Q", parts)

    def pop(self, block: int) -> int | None:
        """Take a hash out; return its number, or None where it was not in."""
        place = self._place(block)
        keys, numbers = self._keys[place], self._numbers[place]
        try:
            where = keys.index(block)
        except ValueError:
            return None
        words = self._words
        number = self._read(numbers, where)
        last = keys.pop()
        if where < len(keys):
            keys[where] = last
            numbers[where * words : (where + 1) * words] = numbers[-words:]
        del numbers[-words:]
        self._size -= 1
        return number

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield every hash with its number."""
        for keys, numbers in zip(self._keys, self._numbers, strict=True):
            for where, block in enumerate(keys):
                yield block, self._read(numbers, where)

    @classmethod
    def of(cls, words: int, blocks: bytes, numbers: bytes) -> BlockMap:
        """Return the map of what `dump` gave. Raises ValueError when the two do not fit together."""
        table = cls(words)
        kept = array("Q", numbers)
        for where, block in enumerate(array("Q", blocks)):
            table.put(block, table._read(kept, where))
        if len(kept) != words * len(blocks) // 8:
            raise ValueError("hashes and numbers are not equally many")
        return table

    def dump(self) -> tuple[bytes, bytes]:
        """Return all hashes and all numbers, in the same order."""
        return b"".join(map(bytes, self._keys)), b"".join(map(bytes, self._numbers))

    def low_words(self) -> array[int]:
        """Return the lowest word of every number that is not 0."""
        found = array("Q")
        words = self._words
        for numbers in self._numbers:
            if words == 1:
                found.extend([low for low in numbers if low])
                continue
            rest = [numbers[index::words] for index in range(1, words)]
            lows = numbers[::words]
            found.extend([low for where, low in enumerate(lows) if low or any(part[where] for part in rest)])
        return found

    def with_low_words(self, lows: set[int]) -> list[int]:
        """Return the hashes whose number has one of these as its lowest word. Looks at all: for rare use."""
        found = []
        words = self._words
        for keys, numbers in zip(self._keys, self._numbers, strict=True):
            here = numbers[::words]
            if not lows.isdisjoint(here):
                found += [block for block, low in zip(keys, here, strict=True) if low in lows]
        return found

    def _read(self, numbers: array[int], where: int) -> int:
        words = self._words
        if words == 2:
            return numbers[2 * where] | numbers[2 * where + 1] << 64
        start = where * words
        return sum(numbers[start + index] << 64 * index for index in range(words))

    def _place(self, block: int) -> int:
        mixed = block ^ block >> 31
        place = mixed & self._mask
        return place if place >= self._split else mixed & (self._mask << 1 | 1)

    def _grow(self) -> None:
        keys, numbers, words = self._keys[self._split], self._numbers[self._split], self._words
        bit = self._mask + 1
        halves = ((array("Q"), array("Q")), (array("Q"), array("Q")))
        for where, block in enumerate(keys):
            half_keys, half_numbers = halves[bool((block ^ block >> 31) & bit)]
            half_keys.append(block)
            half_numbers.extend(numbers[where * words : (where + 1) * words])
        (self._keys[self._split], self._numbers[self._split]), more = halves
        self._keys.append(more[0])
        self._numbers.append(more[1])
        self._split += 1
        if self._split == bit:
            self._mask, self._split = self._mask << 1 | 1, 0
