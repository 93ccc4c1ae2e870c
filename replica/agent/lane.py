"""One unit's writing to Redis, a fenced step at a time. Knows no retry: a failed step is the caller's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from replica.agent import scripts
from replica.agent.redis_clock import RedisClock
from router.kv import wire
from router.kv.client.client import RedisClient, RedisError, Script
from router.kv.keys import Keys
from router.kv.wire import BlocksBatch, Change, Layer, Message, Snapshot, StateChange

LATE_MS = 100
"""What takes longer from here into the stream bears its delay. Less does not matter to readers: they give an engine's
events 0.2 s."""
REGISTRY_S = 3600
"""A unit that was silent for so long is struck off the registry."""


class FencedError(Exception):
    """Another agent writes for this unit now."""


class LostError(Exception):
    """Redis does not know what we wrote before: it was emptied, or a failover lost the end."""


class Lane:
    """The keys of one unit.

    Args:
        redis: Client.
        keys: Names.
        unit: `replica/rank`.
        lease_s: How long a lease holds.
        snapshot_s: How often a snapshot is due; the stream keeps two of these.

    Attributes:
        epoch: Ours; 0 before the first `mint`.
        sequence: Number of the last batch that Redis has.
        stream_id: A position in the stream at or before the next batch.
    """

    def __init__(self, redis: RedisClient, keys: Keys, unit: str, lease_s: float, snapshot_s: float) -> None:
        self.epoch = 0
        self.sequence = 0
        self.stream_id = "0-0"
        self._redis = redis
        self._clock = RedisClock()
        self._keys = keys
        self._unit = unit
        self._fence = keys.epoch(unit)
        self._stream = keys.stream_of(unit)
        self._pointer = keys.snapshot_pointer(unit)
        self._lease = keys.lease(unit)
        self._lease_ms = int(lease_s * 1000)
        self._kept_ms = int(2 * snapshot_s * 1000)
        # Longer than routers wait for a missing agent (3 leases), so that it finds its snapshot when it is back.
        self._ttl_ms = int(4 * lease_s * 1000) + self._kept_ms
        self._snapshot_name: str | None = None
        self._snapshots = 0

    async def mint(self) -> None:
        """Begin a new epoch, above all that were: from now on older writers are fenced."""
        asked_s = time.monotonic()
        epoch, stream_id, now_ms = await self._redis.script(
            scripts.MINT, [self._fence, self._stream], [self._ttl_ms, self.epoch]
        )
        self._clock.note(asked_s, time.monotonic(), now_ms / 1000)
        self.epoch, self.sequence, self.stream_id = int(epoch), 0, stream_id.decode()

    async def publish(
        self, batches: Sequence[tuple[Change, ...]], others: Sequence[Message] = (), behind_s: float = 0.0
    ) -> None:
        """Append batches `sequence + 1`... and then other messages. The same call again after a failure is safe.

        Args:
            behind_s: Age of the newest event in the batches.

        Raises:
            FencedError, LostError: Nothing was written.
        """
        made_s = time.monotonic()
        made_unix_s = self._clock.at(made_s)
        after = self.sequence + len(batches)
        messages: list[Message] = [
            BlocksBatch(self._unit, self.epoch, self.sequence + 1 + index, changes, behind_s)
            for index, changes in enumerate(batches)
        ]
        messages += others
        arguments: list[Any] = [self.epoch, self.sequence, after, self._kept_ms, self._ttl_ms]
        arguments += ["" if made_unix_s is None else int(made_unix_s * 1000), LATE_MS]
        arguments += [wire.encode(message) for message in messages]
        stream_id, now_ms = await self._fenced(scripts.PUBLISH, [self._fence, self._stream], arguments)
        self._clock.note(made_s, time.monotonic(), now_ms / 1000)
        self.stream_id = stream_id.decode()
        self.sequence = after

    async def renew(self, lease: bytes) -> None:
        """Write the lease and keep the unit's keys alive. Raises FencedError, LostError."""
        keys = [self._fence, self._lease, self._pointer]
        if self._snapshot_name is not None:
            keys.append(self._keys.snapshot(self._unit, self._snapshot_name))
        await self._fenced(scripts.RENEW, keys, [self.epoch, lease, self._lease_ms, self._ttl_ms])

    async def enrol(self) -> None:
        """Enter the unit in the registry. In a Cluster that is on another node, which may be away alone."""
        await self._redis.script(scripts.ENROL, [self._keys.registry], [self._unit, REGISTRY_S])

    async def write_snapshot(self, layers: Sequence[Layer], sequence: int, stream_id: str) -> None:
        """Write a snapshot under a new name, then swap the pointer. Raises FencedError, LostError."""
        self._snapshots += 1
        name = f"{self.epoch}.{sequence}.{self._snapshots}"
        key = self._keys.snapshot(self._unit, name)
        snapshot = Snapshot(self._unit, self.epoch, sequence, stream_id, layers)
        try:
            for chunk in snapshot.encode_chunks():
                await self._redis.script(scripts.APPEND, [key], [self._lease_ms, chunk])
            [before] = await self._fenced(
                scripts.SWAP, [self._fence, self._pointer, key], [self.epoch, name, self._ttl_ms]
            )
        except RedisError:
            # A full Redis has no room for half a snapshot; where it is away, the draft ends by itself.
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self._redis.run(key, "UNLINK", key)
            raise
        self._snapshot_name = name
        if before:
            before_key = self._keys.snapshot(self._unit, before.decode())
            await self._redis.run(before_key, "UNLINK", before_key)

    async def relieve(self, kept_share: float) -> None:
        """Give memory back to a Redis that is full: our snapshot, and what our lane keeps for those who join late.

        What follows has to be a new epoch with a snapshot. Who joins other units in between waits for theirs.

        Args:
            kept_share: Of the time that the lane's stream goes back otherwise.

        Raises:
            FencedError, LostError: Nothing was given back.
        """
        snapshot = self._keys.snapshot(self._unit, self._snapshot_name or "none")
        keys = [self._fence, self._stream, self._pointer, snapshot]
        await self._fenced(scripts.RELIEVE, keys, [self.epoch, int(self._kept_ms * kept_share)])
        self._snapshot_name = None

    async def retire(self) -> None:
        """Say that the unit is gone and take its lease away. Raises FencedError, LostError."""
        gone = wire.encode(StateChange(self._unit, self.epoch, "gone"))
        await self._fenced(scripts.RETIRE, [self._fence, self._lease, self._stream], [self.epoch, gone, self._ttl_ms])
        await self._redis.run(self._keys.registry, "ZREM", self._keys.registry, self._unit)

    async def taken(self) -> bool:
        """Return whether another agent holds the unit's lease."""
        return bool(await self._redis.run(self._lease, "EXISTS", self._lease))

    async def _fenced(self, script: Script, keys: list[str], arguments: list[Any]) -> list[Any]:
        answer: list[Any] = await self._redis.script(script, keys, arguments)
        outcome, details = answer[0], answer[1:]
        if outcome == b"fenced":
            raise FencedError
        if outcome != b"ok":
            raise LostError(outcome.decode())
        return details
