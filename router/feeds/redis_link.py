"""One life of the connections to Redis, and every command that the router sends on them.

Two connections: one blocks on the lanes, the other serves everything else. All commands have a time limit, so that a
Redis that accepts and never answers is noticed within seconds. Nothing is retried here: the feed decides.

Whoever may write one key must not take the feed from every router: a key of a wrong type is as if it were not there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from router.kv.keys import FIELD, Keys
from router.kv.redis_url import check_redis_url
from router.kv.wire import Snapshot, WireError, decode_chunks

__all__ = ["Entry", "KeyFaultError", "RedisError", "RedisLink"]

COMMAND_TIMEOUT_S = 2.0
BLOCK_S = 0.5
"""How long one XREAD waits for news; what shows a black hole is that it does not come back even then."""
READ_ENTRIES = 256
CLOSE_S = 0.5
MAX_UNITS = 20_000
MAX_CHUNKS = 4_096

Entry = tuple[str, bytes | None]
"""(stream id, the message's bytes or None where the entry has no `d` field)."""


_OF_THE_SERVER = ("BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE", "NOPROTO")
"""What Redis says of itself in errors that have no class of their own."""


class KeyFaultError(RedisError):
    """A key holds what a command can't read; the link itself is fine."""


class RedisLink:
    """Commands on a standalone Redis or Valkey 7 and newer.

    Args:
        url: Its password never leaves this object: errors name host and port alone.
        keys: Names of what is read.

    Raises:
        RedisError: The URL can't be used; the configuration's check should have found it.
    """

    def __init__(self, url: str, keys: Keys) -> None:
        self._keys = keys
        options: dict[str, Any] = {
            "socket_connect_timeout": COMMAND_TIMEOUT_S,
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
            "single_connection_client": True,
        }
        try:
            self._commands: Any = Redis.from_url(url, socket_timeout=COMMAND_TIMEOUT_S, **options)
            self._lanes: Any = Redis.from_url(url, socket_timeout=BLOCK_S + COMMAND_TIMEOUT_S, **options)
        except (ValueError, TypeError) as error:
            raise RedisError(f"redis.url can't be used: {check_redis_url(url) or type(error).__name__}") from None

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
        """Wait up to `BLOCK_S` for entries after each lane's cursor; one command for all lanes.

        Raises:
            KeyFaultError: The key of a lane is no stream.
        """
        if not cursors:
            await asyncio.sleep(BLOCK_S)
            return []
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
        """Return the id of each lane's newest entry: `0-0` for a lane that is not there, none where it is no stream."""
        answers = await self._each([("XREVRANGE", self._keys.stream(lane), "+", "-", "COUNT", 1) for lane in lanes])
        newest = {lane: _entries(answer) for lane, answer in zip(lanes, answers, strict=True) if answer is not None}
        return {lane: (entries[0][0] if entries else "0-0") for lane, entries in newest.items()}

    async def tail(self, lane: int, after: str) -> list[Entry]:
        """Return up to `READ_ENTRIES` entries of a lane after an id.

        Raises:
            KeyFaultError: The lane's key is no stream.
        """
        key = self._keys.stream(lane)
        answer = await _run(self._commands, "XRANGE", key, f"({after}", "+", "COUNT", READ_ENTRIES)
        return _entries(answer)

    async def units(self, within_s: float) -> dict[str, float]:
        """Return up to `MAX_UNITS` units that were renewed in the last `within_s` seconds of Redis' own time, and when.

        The newest ones, so that names which somebody left there do not crowd out those that are renewed.
        """
        seconds, _ = await _run(self._commands, "TIME")
        since = int(seconds) - within_s
        command = ("ZREVRANGEBYSCORE", self._keys.registry, "+inf", since, "WITHSCORES", "LIMIT", 0, MAX_UNITS)
        found = await _run(self._commands, *command)
        pairs = found if found and isinstance(found[0], list | tuple) else zip(found[::2], found[1::2], strict=True)
        return {name.decode(errors="replace"): float(score) for name, score in pairs}

    async def leases(self, units: Sequence[str]) -> dict[str, bytes | None]:
        """Return the bytes of each unit's lease; None where it is gone, or its key holds something else."""
        answers = await self._each([("GET", self._keys.lease(unit)) for unit in units])
        return dict(zip(units, answers, strict=True))

    async def drains(self, replica_ids: Sequence[str]) -> dict[str, bytes | None]:
        """Return the bytes of each replica's order to take no new requests; None where there is none."""
        answers = await self._each([("GET", self._keys.drain(replica_id)) for replica_id in replica_ids])
        return dict(zip(replica_ids, answers, strict=True))

    async def write_drain(self, replica_id: str, data: bytes | None, keep_ms: int) -> None:
        """Write such an order for `keep_ms`; None takes it away."""
        if data is None:
            await _run(self._commands, "DEL", self._keys.drain(replica_id))
        else:
            await _run(self._commands, "SET", self._keys.drain(replica_id), data, "PX", keep_ms)

    async def snapshot(self, unit: str) -> Snapshot | None:
        """Return the unit's newest snapshot, or None where there is no whole one."""
        for _ in range(2):  # the pointer may move between the two reads
            try:
                pointer = await _run(self._commands, "GET", self._keys.snapshot_pointer(unit))
                if pointer is None:
                    return None
                key = self._keys.snapshot(unit, pointer.decode(errors="replace"))
                snapshot = decode_chunks([chunk async for chunk in self._chunks(key)])
            except (WireError, KeyFaultError):
                continue
            return snapshot if snapshot.unit == unit else None
        return None

    async def text_file(self, digest: str, max_bytes: int) -> bytes | None:
        """Return what lies under a tokenizer file's hash, which may be anything; None for nothing, or for too much."""
        data, is_there = bytearray(), False
        with contextlib.suppress(KeyFaultError):
            async for chunk in self._chunks(self._keys.text_file(digest)):
                data += chunk
                is_there = True
                if len(data) > max_bytes:
                    return None
        return bytes(data) if is_there else None

    async def _each(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return an answer for each command; None where its key holds what it can't read."""
        if not commands:
            return []
        pipeline = self._commands.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers = await _answer(pipeline.execute(raise_on_error=False))
        for answer in answers:
            if isinstance(answer, Exception) and not _is_key_fault(answer):
                raise answer
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    async def _chunks(self, key: str) -> AsyncIterator[bytes]:
        for first in range(0, MAX_CHUNKS, 8):
            chunks: list[bytes] = await _run(self._commands, "LRANGE", key, first, first + 7)
            for chunk in chunks:
                yield chunk
            if len(chunks) < 8:
                return


async def _run(client: Any, *command: Any) -> Any:
    try:
        return await _answer(client.execute_command(*command))
    except ResponseError as error:
        if _is_key_fault(error):
            raise KeyFaultError(str(error)) from None
        raise


def _is_key_fault(error: Exception) -> bool:
    """Tell errors of one key (no class of their own) from what the server says of itself or of our rights."""
    return type(error) is ResponseError and not str(error).startswith(_OF_THE_SERVER)


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
