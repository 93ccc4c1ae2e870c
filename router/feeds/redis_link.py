"""One life of the connections to Redis, and every command that the router sends on them.

All commands have a time limit, so that a Redis that accepts and never answers is noticed within seconds. Nothing is
retried here: the feed decides.

Whoever may write one key must not take the feed from every router: a key of a wrong type is as if it were not there.
Nor must one node of a Cluster: what lies on a node that can't be reached is left out of answers, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from redis.exceptions import ClusterCrossSlotError

from router.feeds.lane_reads import Entry, LaneReads
from router.kv import doubts, router_load
from router.kv.client.client import RedisClient, RedisError, UnreachableError
from router.kv.client.faults import is_of_one_key
from router.kv.keys import FIELD, LATE_FIELD, Keys
from router.kv.lane_spread import LaneSpread, lane_spread
from router.kv.redis_url import RedisUrlError
from router.kv.wire import MAX_BEHIND_S, Snapshot, WireError, decode_chunks

__all__ = ["Entry", "KeyFaultError", "RedisError", "RedisLink"]

COMMAND_TIMEOUT_S = 2.0
BLOCK_S = 0.5
"""How long one XREAD waits for news; what shows a black hole is that it does not come back even then."""
READ_ENTRIES = 256
MAX_UNITS = 20_000
MAX_CHUNKS = 4_096
RATES_KEPT_S = 3_600
"""Routers' rates are gone after this when no router writes any."""

_AWAY = object()
"""Stands for an answer that a node of a Cluster does not give."""


class KeyFaultError(RedisError):
    """A key holds what a command can't read, or its node alone is away; the link itself is fine."""


class RedisLink:
    """Commands on a Redis or Valkey 7 and newer of any kind.

    Args:
        url: Its password never leaves this object: errors name host and port alone.
        keys: Names of what is read.

    Raises:
        RedisError: The URL can't be used; the configuration's check should have found it.

    Attributes:
        away: What failed on a node of a Cluster, while others answered, since this was last set to None.
    """

    def __init__(self, url: str, keys: Keys) -> None:
        self._keys = keys
        self.away: Exception | None = None
        try:
            self._client = RedisClient(url, COMMAND_TIMEOUT_S)
        except RedisUrlError as error:
            raise RedisError(f"redis.url can't be used: {error}") from None
        self._reads = LaneReads(self._read_lane)
        self._load_reads = LaneReads(self._read_load)
        self._one_by_one = False

    @property
    def shown(self) -> str:
        """Where Redis is, without user and password: fit for logs."""
        return self._client.shown

    async def open(self) -> None:
        """Connect, and see that Redis answers, or some of it where it is a Cluster.

        Raises:
            RedisError: It does not, or refuses.
            OSError, TimeoutError: No connection.
        """
        keys = [self._keys.registry, *map(self._keys.stream, range(self._keys.lanes))]
        answers = await self._each([(key, ("PING",)) for key in keys])
        if self.away is not None and all(answer is _AWAY for answer in answers):
            raise self.away

    def lane_spread(self) -> LaneSpread | None:
        """Return how the lanes lie on a Cluster's nodes, once it is open; None for other kinds."""
        slots = self._client.slots
        return lane_spread(self._keys, slots) if slots else None

    async def close(self) -> None:
        """Close all connections."""
        await self._reads.close()
        await self._load_reads.close()
        await self._client.close()

    async def read_lanes(self, cursors: dict[int, str]) -> list[tuple[int, list[Entry]]]:
        """Wait up to `BLOCK_S` for entries after each lane's cursor.

        One command for all lanes; in a Cluster, where no command may read several slots, one for each lane. There a
        lane whose node is away has no entries, and is tried again.

        Raises:
            KeyFaultError: The key of a lane is no stream.
        """
        if not cursors:
            await asyncio.sleep(BLOCK_S)
            return []
        if self._client.is_spread or self._one_by_one:
            return await self._reads.next(cursors)
        try:
            return await self._read_together(cursors)
        except ClusterCrossSlotError:
            self._one_by_one = True  # a Cluster behind something that makes it look like one server
            return []

    async def _read_together(self, cursors: dict[int, str]) -> list[tuple[int, list[Entry]]]:
        lane_of_key = {self._keys.stream(lane).encode(): lane for lane in cursors}
        command = ("XREAD", "COUNT", READ_ENTRIES, "BLOCK", int(BLOCK_S * 1000), "STREAMS", *lane_of_key)
        first = self._keys.stream(next(iter(cursors)))
        found = await self._run(first, *command, *cursors.values(), block_s=BLOCK_S)
        streams = found.items() if isinstance(found, dict) else found or ()
        return [(lane_of_key[key], _entries(entries)) for key, entries in streams]

    async def _read_lane(self, lane: int, cursor: str) -> list[Entry]:
        found = await self._read_together({lane: cursor})
        return found[0][1] if found else []

    async def last_ids(self, lanes: Sequence[int]) -> dict[int, str | None]:
        """Return the id of each lane's newest entry: `0-0` for a lane that is not there, None where it is no stream.

        A lane whose node is away is left out.
        """
        keys = [self._keys.stream(lane) for lane in lanes]
        answers = await self._each([(key, ("XREVRANGE", key, "+", "-", "COUNT", 1)) for key in keys])
        newest: dict[int, str | None] = {}
        for lane, answer in zip(lanes, answers, strict=True):
            if answer is not _AWAY:
                entries = None if answer is None else _entries(answer)
                newest[lane] = None if entries is None else entries[0][0] if entries else "0-0"
        return newest

    async def tail(self, lane: int, after: str) -> list[Entry]:
        """Return up to `READ_ENTRIES` entries of a lane after an id.

        Raises:
            KeyFaultError: The lane's key is no stream.
        """
        key = self._keys.stream(lane)
        answer = await self._run(key, "XRANGE", key, f"({after}", "+", "COUNT", READ_ENTRIES)
        return _entries(answer)

    async def units(self, within_s: float) -> dict[str, float]:
        """Return up to `MAX_UNITS` units that were renewed in the last `within_s` seconds of Redis' own time, and when.

        The newest ones, so that names which somebody left there do not crowd out those that are renewed.
        """
        registry = self._keys.registry
        seconds, _ = await self._run(registry, "TIME")
        since = int(seconds) - within_s
        command = ("ZREVRANGEBYSCORE", registry, "+inf", since, "WITHSCORES", "LIMIT", 0, MAX_UNITS)
        found = await self._run(registry, *command)
        pairs = found if found and isinstance(found[0], list | tuple) else zip(found[::2], found[1::2], strict=True)
        return {name.decode(errors="replace"): float(score) for name, score in pairs}

    async def leases(self, units: Sequence[str]) -> dict[str, bytes | None]:
        """Return the bytes of each unit's lease; None where it is gone, or its key holds something else.

        A unit whose node is away is left out: nothing is known of its lease.
        """
        return await self._values({unit: self._keys.lease(unit) for unit in units})

    async def drains(self, replica_ids: Sequence[str]) -> dict[str, bytes | None]:
        """Return an operator's order for each of these replicas; None where there is none. See `leases`."""
        return await self._values({replica_id: self._keys.drain(replica_id) for replica_id in replica_ids})

    async def write_drain(self, replica_id: str, data: bytes | None, keep_ms: int) -> None:
        """Write such an order for `keep_ms`; None takes it away."""
        key = self._keys.drain(replica_id)
        if data is None:
            await self._run(key, "DEL", key)
        else:
            await self._run(key, "SET", key, data, "PX", keep_ms)

    async def write_doubt(self, unit: str, data: bytes) -> None:
        """Leave word for a unit's agent: the last few are kept, and not for long."""
        key = self._keys.doubts(unit)
        await self._run(key, "RPUSH", key, data)
        await self._run(key, "LTRIM", key, -doubts.MAX_KEPT, -1)
        await self._run(key, "PEXPIRE", key, doubts.KEEP_S * 1000)

    async def exchange_rates(self, name: str, data: bytes, gone: Sequence[str]) -> dict[str, bytes]:
        """Write what is asked of this router, take away what routers that are gone left; return what all wrote.

        Raises:
            KeyFaultError: The key holds something else, or its node is away.
        """
        key = self._keys.rates
        await self._run(key, "HSET", key, name, data)
        if gone:
            await self._run(key, "HDEL", key, *gone)
        await self._run(key, "EXPIRE", key, RATES_KEPT_S)
        found = await self._run(key, "HGETALL", key)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {name.decode(errors="replace"): value for name, value in pairs}

    async def last_loads(self, lanes: Sequence[int]) -> dict[int, str]:
        """Return the id of the newest entry of each lane's load stream, `0-0` for none; lanes that are away left out.

        Raises:
            KeyFaultError: The key is no stream.
        """
        keys = [self._keys.load_stream(lane) for lane in lanes]
        answers = await self._each([(key, ("XREVRANGE", key, "+", "-", "COUNT", 1)) for key in keys])
        newest = {}
        for lane, key, answer in zip(lanes, keys, answers, strict=True):
            if answer is None:
                raise KeyFaultError(f"{key} is no stream")
            if answer is not _AWAY:
                newest[lane] = answer[0][0].decode() if answer else "0-0"
        return newest

    async def write_loads(self, entries: Mapping[int, bytes], keep: bool = True) -> None:
        """Append to lanes' load streams, and cut them to what is of use. A lane whose node is away is left out.

        Args:
            keep: Have the streams live on for `router_load.KEEP_S`.

        Raises:
            KeyFaultError: The key is no stream.
        """
        commands: list[tuple[str, tuple[Any, ...]]] = []
        for lane, data in entries.items():
            key = self._keys.load_stream(lane)
            commands.append((key, ("XADD", key, "MAXLEN", "~", router_load.MAX_ENTRIES, "*", FIELD, data)))
            if keep:
                commands.append((key, ("EXPIRE", key, router_load.KEEP_S)))
        if None in await self._each(commands):
            raise KeyFaultError("a lane's load stream can't be written")

    async def read_loads(self, cursors: dict[int, str], block_s: float = BLOCK_S) -> list[tuple[int, list[Entry]]]:
        """Wait up to `block_s` for entries of lanes' load streams, as `read_lanes` does.

        Raises:
            KeyFaultError: The key is no stream.
        """
        if self._client.is_spread or self._one_by_one:
            return await self._load_reads.next(cursors)
        return await self._read_loads_together(cursors, block_s)

    async def _read_loads_together(self, cursors: dict[int, str], block_s: float) -> list[tuple[int, list[Entry]]]:
        lane_of_key = {self._keys.load_stream(lane).encode(): lane for lane in cursors}
        wait = ("BLOCK", int(block_s * 1000)) if block_s else ()
        command = ("XREAD", "COUNT", READ_ENTRIES, *wait, "STREAMS", *lane_of_key)
        first = self._keys.load_stream(next(iter(cursors)))
        found = await self._run(first, *command, *cursors.values(), block_s=block_s)
        streams = found.items() if isinstance(found, dict) else found or ()
        return [(lane_of_key[key], _entries(entries)) for key, entries in streams]

    async def _read_load(self, lane: int, cursor: str) -> list[Entry]:
        found = await self._read_loads_together({lane: cursor}, BLOCK_S)
        return found[0][1] if found else []

    async def snapshot(self, unit: str) -> Snapshot | None:
        """Return the unit's newest snapshot, or None where there is no whole one."""
        for _ in range(2):  # the pointer may move between the two reads
            try:
                pointer_key = self._keys.snapshot_pointer(unit)
                pointer = await self._run(pointer_key, "GET", pointer_key)
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

    async def _values(self, keys: dict[str, str]) -> dict[str, bytes | None]:
        answers = await self._each([(key, ("GET", key)) for key in keys.values()])
        return {name: answer for name, answer in zip(keys, answers, strict=True) if answer is not _AWAY}

    async def _each(self, commands: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Return an answer for each command: None where its key holds what it can't read, `_AWAY` without its node."""
        if not commands:
            return []
        answers = await self._client.each(commands)
        lost = [answer for answer in answers if isinstance(answer, UnreachableError)]
        if lost and not self._client.is_spread:
            raise lost[0]
        self.away = lost[0] if lost else self.away
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, UnreachableError) and not is_of_one_key(answer):
                raise answer
        return [
            _AWAY if isinstance(answer, UnreachableError) else None if isinstance(answer, Exception) else answer
            for answer in answers
        ]

    async def _run(self, key: str, *command: Any, block_s: float = 0.0) -> Any:
        try:
            return await self._client.run(key, *command, block_s=block_s)
        except UnreachableError as error:
            if self._client.is_spread:
                self.away = error
                raise KeyFaultError(str(error) or type(error).__name__) from error
            raise
        except RedisError as error:
            if is_of_one_key(error):
                raise KeyFaultError(str(error)) from None
            raise

    async def _chunks(self, key: str) -> AsyncIterator[bytes]:
        for first in range(0, MAX_CHUNKS, 8):
            chunks: list[bytes] = await self._run(key, "LRANGE", key, first, first + 7)
            for chunk in chunks:
                yield chunk
            if len(chunks) < 8:
                return


def _entries(answer: Any) -> list[Entry]:
    entries: list[Entry] = []
    for entry_id, fields in answer or ():
        found: dict[bytes, bytes] = {}
        if isinstance(fields, dict):
            found = fields
        elif fields:
            pairs = fields if isinstance(fields[0], list | tuple) else zip(fields[::2], fields[1::2], strict=False)
            found = dict(pairs)
        entries.append(Entry(entry_id.decode(), found.get(FIELD), _late_s(found.get(LATE_FIELD))))
    return entries


def _late_s(data: bytes | None) -> float:
    is_number = data is not None and len(data) <= 12 and data.isdigit()
    return min(int(data) / 1000, MAX_BEHIND_S) if data is not None and is_number else 0.0


def id_key(stream_id: str) -> tuple[int, int]:
    """Return a stream id as numbers, to compare."""
    milliseconds, _, number = stream_id.partition("-")
    return int(milliseconds), int(number or 0)
