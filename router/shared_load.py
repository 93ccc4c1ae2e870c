"""What a router's worker processes have in flight, told to each other through shared memory.

Each worker writes a table of its own and reads the others'. A writer makes the table's version odd, writes, and makes
it even; a reader that sees an odd version, or another one afterwards, looks again the next time. Nothing waits. The
figures are a few milliseconds old, which is what two requests at once would see of each other anyway.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

MAX_UNITS = 8_192
"""Units in one table; more are not told of."""
_HEAD = struct.Struct("<QQ")
"""Version, rows."""
_ROW = struct.Struct("<Qqddd")
"""xxh64 of the unit's name; then as `Row`."""
_GROUP_BYTES = 8
_TABLE_BYTES = _HEAD.size + MAX_UNITS * _ROW.size

Row = tuple[str, int, float, float, float]
"""Unit; requests; uncached prompt tokens that are not computed; when the oldest such prompt was placed (monotonic
seconds, which all processes of a machine share; infinite for none); tokens computed, ever."""


@dataclass(slots=True)
class Others:
    """What the other workers have at a unit, added up.

    Attributes:
        head_s: When the oldest of their prompts that are not computed was placed.
    """

    requests: int = 0
    tokens: float = 0.0
    head_s: float = math.inf
    computed_tokens: float = 0.0


def create(workers: int) -> int:
    """Return the descriptor of shared memory for so many workers; whoever inherits it can open it."""
    descriptor = os.memfd_create("warmroute-load")
    os.ftruncate(descriptor, workers * _TABLE_BYTES + _GROUP_BYTES)
    os.pwrite(descriptor, os.urandom(_GROUP_BYTES), workers * _TABLE_BYTES)
    return descriptor


class SharedLoad:
    """One worker's view.

    Args:
        descriptor: From `create`; not closed here.
        number: This worker's, from 0.
        workers: How many there are.
    """

    def __init__(self, descriptor: int, number: int, workers: int) -> None:
        self._memory = mmap.mmap(descriptor, workers * _TABLE_BYTES + _GROUP_BYTES)
        self.group = self._memory[workers * _TABLE_BYTES :].hex()
        """What these workers have in common, and no others: a random name."""
        self.number = number
        self._own = number * _TABLE_BYTES
        self._others = [each * _TABLE_BYTES for each in range(workers) if each != number]
        self._versions: dict[int, int] = dict.fromkeys(self._others, -1)
        self._read: dict[int, dict[int, tuple[int, float, float, float]]] = {}
        self._written = b""
        self._names: dict[str, int] = {}

    def publish(self, rows: Iterable[Row]) -> None:
        """Tell the others what is in flight here; units that are not named have nothing."""
        packed = [_ROW.pack(self.key(name), *figures) for name, *figures in rows]
        table = b"".join(packed[:MAX_UNITS])
        if table == self._written:
            return
        self._written = table
        version, _ = _HEAD.unpack_from(self._memory, self._own)
        begun = version | 1
        _HEAD.pack_into(self._memory, self._own, begun, 0)
        start = self._own + _HEAD.size
        self._memory[start : start + len(table)] = table
        _HEAD.pack_into(self._memory, self._own, begun + 1, len(table) // _ROW.size)

    def others(self) -> dict[int, Others] | None:
        """Return what the other workers have in flight, by `key`; None when nothing has changed."""
        changed = False
        for table in self._others:
            version, rows = _HEAD.unpack_from(self._memory, table)
            if version == self._versions[table] or version & 1:
                continue
            start = table + _HEAD.size
            copied = self._memory[start : start + min(rows, MAX_UNITS) * _ROW.size]
            if _HEAD.unpack_from(self._memory, table)[0] != version:
                continue
            self._versions[table] = version
            self._read[table] = {row[0]: row[1:] for row in _ROW.iter_unpack(copied)}
            changed = True
        if not changed:
            return None
        total: dict[int, Others] = {}
        for read in self._read.values():
            for key, (requests, tokens, head_s, computed_tokens) in read.items():
                known = total.setdefault(key, Others())
                known.requests += requests
                known.tokens += tokens
                known.head_s = min(known.head_s, head_s)
                known.computed_tokens += computed_tokens
        return total

    def key(self, name: str) -> int:
        """Return what stands for a unit's name in a table."""
        key = self._names.get(name)
        if key is None:
            if len(self._names) >= 2 * MAX_UNITS:
                self._names.clear()
            key = self._names[name] = xxhash.xxh64_intdigest(name.encode())
        return key

    def close(self) -> None:
        """Give the memory back; what was told last stays for the others."""
        self._memory.close()


def clear(descriptor: int, number: int, workers: int) -> None:
    """Take back what a worker told that is no more."""
    gone = SharedLoad(descriptor, number, workers)
    gone._written = b"?"
    gone.publish(())
    gone.close()
