"""Lanes that are read each by a command of its own: in a Cluster no command may read keys of several slots.

Each lane is waited for on a connection of its own, so an entry is here as soon as it is written, and a lane whose node
is away keeps no other waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from router.kv.client.client import UnreachableError

AGAIN_S = 0.25
"""A lane that could not be read is tried again after this."""


class Entry(NamedTuple):
    """An entry of a stream.

    Attributes:
        entry_id: The stream's id.
        data: The message's bytes; None where the entry has no `d` field.
        late_s: How long ago it was written when it came into the stream: a link that stalled held it back.
    """

    entry_id: str
    data: bytes | None
    late_s: float = 0.0


@dataclass(slots=True)
class _Read:
    """A command under way."""

    cursor: str
    task: asyncio.Task[list[Entry]]


class LaneReads:
    """The commands under way.

    Args:
        read: Waits for entries of a lane after an id; returns none after a while.
    """

    def __init__(self, read: Callable[[int, str], Awaitable[list[Entry]]]) -> None:
        self._read = read
        self._reads: dict[int, _Read] = {}
        self._failing: dict[int, BaseException] = {}

    async def next(self, cursors: dict[int, str]) -> list[tuple[int, list[Entry]]]:
        """Wait until some lane has entries after its cursor, or nothing came for a while, and return them.

        Raises:
            RedisError, OSError, TimeoutError: No lane can be read, or one for a reason of its own.
        """
        for lane in [lane for lane in self._reads if lane not in cursors]:
            self._reads.pop(lane).task.cancel()
        self._failing = {lane: error for lane, error in self._failing.items() if lane in cursors}
        for lane, cursor in cursors.items():
            if lane not in self._reads:
                self._reads[lane] = _Read(cursor, asyncio.create_task(self._one(lane, cursor)))
        await asyncio.wait([read.task for read in self._reads.values()], return_when=asyncio.FIRST_COMPLETED)
        found = []
        for lane in [lane for lane, read in self._reads.items() if read.task.done()]:
            read = self._reads.pop(lane)
            # What was asked for before the cursor was set anew is of no use.
            if (entries := read.task.result()) and read.cursor == cursors[lane]:
                found.append((lane, entries))
        if self._failing and len(self._failing) == len(cursors):
            raise next(iter(self._failing.values()))
        return found

    async def close(self) -> None:
        """End all commands."""
        tasks = [read.task for read in self._reads.values()]
        self._reads.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, lane: int, cursor: str) -> list[Entry]:
        try:
            entries = list(await self._read(lane, cursor))
        except Exception as error:
            if not isinstance(error.__cause__, UnreachableError):
                raise
            self._failing[lane] = error.__cause__
            await asyncio.sleep(AGAIN_S)
            return []
        self._failing.pop(lane, None)
        return entries
