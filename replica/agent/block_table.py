"""Sets and maps of block hashes at a few bytes each, where Python's own take a hundred. Pure.

`BlockSet` and `BlockMap` are the native core's (`router/native/block_table.c`) where it is built, else those below,
which do the same at a microsecond a block more. Tests hold the two equal.

Here a hash lies in one of many small arrays of 64-bit words, chosen by its bits; an array is searched through, a
microsecond for the dozen that are in it. The table grows by linear hashing: whenever it is fuller than it should be,
one array is split in two, so no call ever has to move all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from router import native

_FULL = 14
"""Hashes in an array, on average, before one is split: fewer cost more memory, more cost more time."""
_WORD_BYTES = 8


class PurePythonBlockSet:
    """A set of unsigned 64-bit hashes.

    Args:
        words: What `words` gave. Raises ValueError when these are no whole words.
    """

    __slots__ = ("_arrays", "_mask", "_size", "_split")

    def __init__(self, words: bytes = b"") -> None:
        self._arrays = [array("Q")]
        self._mask = 0
        """Of the arrays at the last doubling."""
        self._split = 0
        """Arrays before this one are split already: their hashes are told apart by one bit more."""
        self._size = 0
        self.add_all(array("Q", words))

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return block in self._arrays[_place(block, self._mask, self._split)]

    def add_all(self, blocks: Sequence[int]) -> list[int]:
        """Put hashes in; return those that are new, in order."""
        fresh = []
        for block in blocks:
            words = self._arrays[_place(block, self._mask, self._split)]
            if block not in words:
                words.append(block)
                fresh.append(block)
                self._size += 1
                if self._size > _FULL * len(self._arrays):
                    self._grow()
        return fresh

    def discard_all(self, blocks: Sequence[int]) -> list[int]:
        """Take hashes out; return those that were in, in order."""
        gone = []
        for block in blocks:
            words = self._arrays[_place(block, self._mask, self._split)]
            try:
                where = words.index(block)
            except ValueError:
                continue
            last = words.pop()
            if where < len(words):
                words[where] = last
            gone.append(block)
        self._size -= len(gone)
        return gone

    def words(self) -> bytes:
        """Return all hashes as 64-bit words of this machine's byte order."""
        return b"".join(map(bytes, self._arrays))

    def _grow(self) -> None:
        old = self._arrays[self._split]
        bit = self._mask + 1
        self._arrays[self._split] = array("Q", [block for block in old if not _mixed(block) & bit])
        self._arrays.append(array("Q", [block for block in old if _mixed(block) & bit]))
        self._mask, self._split = _after_split(self._mask, self._split)


class PurePythonBlockMap:
    """A map from unsigned 64-bit hashes to bytes of a fixed width.

    Args:
        width: Bytes of a value, 1 to 32768.
        blocks, values: What `dump` gave. Raises ValueError when the two do not fit together.
    """

    __slots__ = ("_keys", "_mask", "_size", "_split", "_values", "_width")

    def __init__(self, width: int = 16, blocks: bytes = b"", values: bytes = b"") -> None:
        if not 1 <= width <= 4096 * _WORD_BYTES:
            raise ValueError("a width is 1 to 32768 bytes")
        self._keys = [array("Q")]
        self._values = [bytearray()]
        self._width = width
        self._mask = self._split = self._size = 0
        keys = array("Q", blocks)
        if len(values) != width * len(keys):
            raise ValueError("hashes and values are not equally many")
        self.put_all(keys, [values[start : start + width] for start in range(0, len(values), width)])

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return block in self._keys[_place(block, self._mask, self._split)]

    def get(self, block: int) -> bytes | None:
        """Return a hash's value, or None."""
        return self.get_all((block,))[0]

    def get_all(self, blocks: Sequence[int]) -> list[bytes | None]:
        """Return the value of each hash, None where it is not in."""
        found: list[bytes | None] = []
        width = self._width
        for block in blocks:
            place = _place(block, self._mask, self._split)
            try:
                start = self._keys[place].index(block) * width
            except ValueError:
                found.append(None)
            else:
                found.append(bytes(self._values[place][start : start + width]))
        return found

    def put_all(self, blocks: Sequence[int], values: Sequence[bytes]) -> None:
        """Let hashes have these values, each of the map's width. Raises ValueError where it is not."""
        width = self._width
        for block, value in zip(blocks, values, strict=True):
            if len(value) != width:
                raise ValueError(f"a value is bytes of length {width}")
            place = _place(block, self._mask, self._split)
            keys = self._keys[place]
            try:
                start = keys.index(block) * width
            except ValueError:
                keys.append(block)
                self._values[place] += value
                self._size += 1
                if self._size > _FULL * len(self._keys):
                    self._grow()
            else:
                self._values[place][start : start + width] = value

    def pop_all(self, blocks: Sequence[int]) -> list[bytes | None]:
        """Take hashes out; return the value of each, None where it was not in."""
        found: list[bytes | None] = []
        width = self._width
        for block in blocks:
            place = _place(block, self._mask, self._split)
            keys, values = self._keys[place], self._values[place]
            try:
                where = keys.index(block)
            except ValueError:
                found.append(None)
                continue
            start = where * width
            found.append(bytes(values[start : start + width]))
            last = keys.pop()
            if where < len(keys):
                keys[where] = last
                values[start : start + width] = values[-width:]
            del values[-width:]
            self._size -= 1
        return found

    def dump(self) -> tuple[bytes, bytes]:
        """Return all hashes as 64-bit words of this machine's byte order, and their values in the same order."""
        return b"".join(map(bytes, self._keys)), b"".join(self._values)

    def _grow(self) -> None:
        keys, values, width = self._keys[self._split], self._values[self._split], self._width
        bit = self._mask + 1
        halves = ((array("Q"), bytearray()), (array("Q"), bytearray()))
        for where, block in enumerate(keys):
            half_keys, half_values = halves[bool(_mixed(block) & bit)]
            half_keys.append(block)
            half_values += values[where * width : (where + 1) * width]
        (self._keys[self._split], self._values[self._split]), more = halves
        self._keys.append(more[0])
        self._values.append(more[1])
        self._mask, self._split = _after_split(self._mask, self._split)


def _mixed(block: int) -> int:
    return block ^ block >> 31


def _place(block: int, mask: int, split: int) -> int:
    mixed = block ^ block >> 31
    place = mixed & mask
    return place if place >= split else mixed & (mask << 1 | 1)


def _after_split(mask: int, split: int) -> tuple[int, int]:
    return (mask << 1 | 1, 0) if split == mask else (mask, split + 1)


if TYPE_CHECKING:
    BlockSet = PurePythonBlockSet
    BlockMap = PurePythonBlockMap
else:
    _core = native.core("block_table")
    BlockSet = PurePythonBlockSet if _core is None else _core.BlockSet
    BlockMap = PurePythonBlockMap if _core is None else _core.BlockMap
