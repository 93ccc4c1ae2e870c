"""One life of the connections to Redis, and every command that the router sends on them.

Two connections: one blocks on the lanes, the other serves everything else. All commands have a time limit, so that a
Redis that accepts and never answers is noticed within seconds. Nothing is retried here: the feed decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from router.kv.keys import FIELD, Keys
from router.kv.wire import Snapshot, WireError, decode_chunks

__all__ = ["Entry", "RedisError", "RedisLink"]

COMMAND_TIMEOUT_S = 2.0
BLOCK_S = 0.5
"""How long one XREAD waits for news; what shows a black hole is that it does not come back even then."""
READ_ENTRIES = 256
CLOSE_S = 0.5
MAX_UNITS = 20_000
MAX_CHUNKS = 4_096

Entry = tuple[str, bytes | None]
"""(stream id, the message's bytes or None where the entry has no `d` field)."""


class RedisLink:
    """Commands on a standalone Redis or Valkey 7 and newer.

    Args:
        url: Its password never leaves this object: errors name host and port alone.
        keys: Names of what is read.
    """

    def __init__(self, url: str, keys: Keys) -> None:
        self._keys = keys
        options: dict[str, Any] = {
            "socket_connect_timeout": COMMAND_TIMEOUT_S,
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "single_connection_client": True,
        }
        self._commands: Any = Redis.from_url(url, socket_timeout=COMMAND_TIMEOUT_S, **options)
        self._lanes: Any = Redis.from_url(url, socket_timeout=BLOCK_S + COMMAND_TIMEOUT_S, **options)

    async def open(self) -> None:
        """Connect both and see that Redis answers.

        Raises:
            RedisError: It does not, or refuses.
            OSError: No connection.
        """
        await _answer(self._commands.initialize())
        await _answer(self._lanes.initialize())
        await _run(self._commands, "PING")
        await _run(self._lanes, "PING")

    async def close(self) -> None:
        """Close both connections."""
        for client in (self._commands, self._lanes):
            # A broken connection is closed all the same.
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await client.aclose()

    async def read_lanes(self, cursors: dict[int, str]) -> list[tuple[int, list[Entry]]]:
        """Wait up to `BLOCK_S` for entries after each lane's cursor; one command for all lanes."""
        lane_of_key = {self._keys.stream(lane).encode(): lane for lane in cursors}
        found = await _run(
            self._lanes,
            "XREAD",
            "COUNT",
            READ_ENTRIES,
            "BLOCK",
            int(BLOCK_S * 1000),
            "STREAMS",
            *lane_of_key,
            *cursors.values(),
        )
        if not found:
            return []
        streams = found.items() if isinstance(found, dict) else found
        return [(lane_of_key[key], _entries(entries)) for key, entries in streams]

    async def last_ids(self, lanes: Sequence[int]) -> dict[int, str]:
        """Return the id of each lane's newest entry; `0-0` for a lane that is not there."""
        pipeline = self._commands.pipeline(transaction=False)
        for lane in lanes:
            pipeline.execute_command("XREVRANGE", self._keys.stream(lane), "+", "-", "COUNT", 1)
        answers = await _answer(pipeline.execute())
        newest = (_entries(answer) for answer in answers)
        return {lane: (entries[0][0] if entries else "0-0") for lane, entries in zip(lanes, newest, strict=True)}

    async def tail(self, lane: int, after: str) -> list[Entry]:
        """Return up to `READ_ENTRIES` entries of a lane after an id."""
        key = self._keys.stream(lane)
        answer = await _run(self._commands, "XRANGE", key, f"({after}", "+", "COUNT", READ_ENTRIES)
        return _entries(answer)

    async def units(self, within_s: float) -> list[str]:
        """Return the units that were renewed in the last `within_s` seconds of Redis' own time."""
        seconds, _ = await _run(self._commands, "TIME")
        since = int(seconds) - within_s
        names = await _run(self._commands, "ZRANGEBYSCORE", self._keys.registry, since, "+inf", "LIMIT", 0, MAX_UNITS)
        return [name.decode(errors="replace") for name in names]

    async def leases(self, units: Sequence[str]) -> dict[str, bytes | None]:
        """Return the bytes of each unit's lease; None where it is gone."""
        if not units:
            return {}
        pipeline = self._commands.pipeline(transaction=False)
        for unit in units:
            pipeline.execute_command("GET", self._keys.lease(unit))
        return dict(zip(units, await _answer(pipeline.execute()), strict=True))

    async def snapshot(self, unit: str) -> Snapshot | None:
        """Return the unit's newest snapshot, or None where there is no whole one."""
        for _ in range(2):  # the pointer may move between the two reads
            pointer = await _run(self._commands, "GET", self._keys.snapshot_pointer(unit))
            if pointer is None:
                return None
            key = self._keys.snapshot(unit, pointer.decode(errors="replace"))
            chunks = [chunk async for chunk in self._chunks(key)]
            try:
                snapshot = decode_chunks(chunks)
            except WireError:
                continue
            return snapshot if snapshot.unit == unit else None
        return None

    async def _chunks(self, key: str) -> AsyncIterator[bytes]:
        for first in range(0, MAX_CHUNKS, 8):
            chunks: list[bytes] = await _run(self._commands, "LRANGE", key, first, first + 7)
            for chunk in chunks:
                yield chunk
            if len(chunks) < 8:
                return


async def _run(client: Any, *command: Any) -> Any:
    return await _answer(client.execute_command(*command))


async def _answer(asked: Awaitable[Any]) -> Any:
    """Return the answer, unless the asking task was cancelled meanwhile.

    Python 3.11's `asyncio.wait_for`, which the client sends with, swallows a cancellation that comes as it completes.
    """
    # The client's own time limit does not hold for the handshake.
    async with asyncio.timeout(BLOCK_S + COMMAND_TIMEOUT_S):
        return await _unless_cancelled(asked)


async def _unless_cancelled(asked: Awaitable[Any]) -> Any:
    answer = await asked
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    return answer


def _entries(answer: Any) -> list[Entry]:
    entries: list[Entry] = []
    for entry_id, fields in answer or ():
        data = None
        if isinstance(fields, dict):
            data = fields.get(FIELD)
        elif fields:
            pairs = fields if isinstance(fields[0], list | tuple) else zip(fields[::2], fields[1::2], strict=False)
            data = dict(pairs).get(FIELD)
        entries.append((entry_id.decode(), data))
    return entries


def id_key(stream_id: str) -> tuple[int, int]:
    """Return a stream id as numbers, to compare."""
    milliseconds, _, number = stream_id.partition("-")
    return int(milliseconds), int(number or 0)
