"""Keeps Redis at the newest state of one unit, whatever Redis does.

One task does all of a unit's writing in turn: batches (coalesced for some milliseconds), heartbeats, leases, snapshots.
The reading side only leaves changes here and never waits. While Redis is away they queue up to a bound; beyond it they
are dropped, and a new epoch with a snapshot of the newest state takes their place.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Literal

from replica.agent.lane import FencedError, Lane, LostError
from replica.agent.metrics import AgentMetrics
from replica.agent.outbox import Outbox
from replica.agent.unit import UnitState
from router.kv.client import faults
from router.kv.client.client import RedisError
from router.kv.engine_metrics import Load
from router.kv.wire import Change, Heartbeat, Message, StateChange

log = logging.getLogger(__name__)

COALESCE_S = 0.005
MAX_WAITING_BLOCKS = 100_000
"""Bound of what queues while Redis is away; a snapshot costs no more than this many changes."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 2.0
SAY_AGAIN_S = 30.0
ENROL_AGAIN_S = 2.0
RELIEVED_AFTER = 3
"""Steps in a row that a full Redis refused before we give it our part of its memory back."""

LeaseOf = Callable[[int], bytes]
"""Lease bytes for an epoch."""
State = Literal["ready", "draining"]


class UnitSink:
    """One unit's writing side.

    Args:
        unit: Where snapshots are taken from.
        lane: Its steps in Redis.
        lease_s: How long a lease holds; it is renewed four times as often.
        snapshot_s: A unit that changed writes a snapshot at least so often.
        redis_shown: Redis' address for log lines.
        read_until_s: Tells before when (monotonic) all that the engine announced was offered.
    """

    def __init__(
        self,
        unit: UnitState,
        lane: Lane,
        lease_s: float,
        snapshot_s: float,
        redis_shown: str,
        metrics: AgentMetrics,
        coalesce_s: float = COALESCE_S,
        read_until_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit = unit
        self._lane = lane
        self._renew_s = lease_s / 4
        self._snapshot_s = snapshot_s
        self._redis_shown = redis_shown
        self._metrics = metrics
        self._coalesce_s = coalesce_s
        self._read_until_s = read_until_s
        self._outbox = Outbox(coalesce_s)
        self._load: Load | None = None
        self._beat_due = False
        self._lease_of: LeaseOf | None = None
        self._state: State = "ready"
        self._lease_is_news = self._announcement_due = False
        # Grows when what routers know is void; an epoch stands when it began in the present generation.
        self._generation = 0
        self._established: int | None = None
        self._collecting = False
        self._changed = False
        self._lease_due_s = self._snapshot_due_s = 0.0
        self._wake = asyncio.Event()
        self._enrol_due_s = float("inf")
        self._failures = self._relieved = 0
        self._said = ""
        self._said_s = -SAY_AGAIN_S
        self._fenced = False
        self._ending = False
        self.ready = asyncio.Event()
        """Set once the first lease and snapshot are in Redis."""

    @property
    def epoch(self) -> int:
        """The epoch that is being written."""
        return self._lane.epoch

    @property
    def healthy(self) -> bool:
        """Whether Redis holds an epoch of ours and the last step worked."""
        return self._is_established and self._failures == 0

    @property
    def is_told(self) -> bool:
        """Whether Redis holds what was registered last, and its lane says so."""
        return self.healthy and not self._lease_is_news and not self._announcement_due

    @property
    def _is_established(self) -> bool:
        return self._established == self._generation

    def offer(self, changes: Sequence[Change], received_s: float) -> None:
        """Take changes to publish; `received_s` is the time.monotonic() of their frame."""
        if not self._collecting:
            return  # the snapshot that begins the epoch will hold them
        if not self._outbox.is_waiting:
            self._wake.set()
        self._outbox.add(changes, received_s, self._unit.last_event_s)
        self._changed = True
        if self._outbox.blocks > MAX_WAITING_BLOCKS:
            self._metrics.dropped.labels(self._unit.unit_id).inc(self._outbox.blocks)
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """Void what was published: the next thing in Redis is a new epoch with a snapshot."""
        self._generation += 1
        self._collecting = False
        self._outbox.drop()
        self._wake.set()

    def report_load(self, load: Load | None) -> None:
        """Send a heartbeat with this load; None is unknown."""
        self._load = load
        self._beat_due = True
        self._wake.set()

    def beat(self) -> None:
        """Send a heartbeat with the last load again."""
        self._beat_due = True
        self._wake.set()

    def register(self, lease_of: LeaseOf | None, state: State = "ready") -> None:
        """Hold this lease from now on; None: the engine is gone, and so is the unit.

        It is written at once, and the lane tells routers to read it.

        Args:
            state: What the lease says of the unit, for the lane.
        """
        self._lease_of = lease_of
        self._state = state
        self._lease_due_s = 0.0
        self._lease_is_news = True
        self._wake.set()

    def end(self) -> None:
        """Let `run` end at the next occasion; cancel its task too, to end its waits.

        Cancelling alone is not enough: redis-py (8.1) swallows a cancellation that arrives within a command.
        """
        self._ending = True

    async def run(self) -> None:
        """Write until ended. Nothing that Redis does ends it."""
        while not self._ending:
            await self._wait()
            try:
                await self._step()
            except FencedError:
                await self._stand_by()
            except LostError as error:
                log.warning("redis lost what was written", extra={"unit": self._unit.unit_id, "what": str(error)})
                self._metrics.redis_errors.labels(self._unit.unit_id).inc()
                self.begin_epoch()
            except (RedisError, OSError, TimeoutError) as error:
                await self._back_off(error)
            else:
                if self._failures:
                    log.info("redis answers again", extra={"unit": self._unit.unit_id})
                    self._failures, self._relieved, self._said = 0, 0, ""

    async def close(self, timeout_s: float) -> None:
        """Take the lease away, if Redis lets us in time. `run` must have ended."""
        if self._established is None or self._fenced:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._lane.retire()
        except (RedisError, OSError, TimeoutError, FencedError, LostError):
            log.warning("the lease could not be removed; it ends by itself", extra={"unit": self._unit.unit_id})

    async def _wait(self) -> None:
        now = time.monotonic()
        if self._lease_of is None:
            left = self._lease_due_s - now  # no snapshot is due while there is no engine
        elif self._outbox or not self._is_established:
            left = 0.0
        else:
            snapshot_due_s = self._snapshot_due_s if self._changed else float("inf")
            left = min(self._lease_due_s, snapshot_due_s, self._enrol_due_s) - now
        if left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()
        else:
            await asyncio.sleep(0)  # a step that finds nothing to do awaits nothing: others get their turn here
        self._wake.clear()

    async def _step(self) -> None:
        if self._lease_of is None:
            self._lease_due_s = time.monotonic() + self._renew_s
            if self._established is not None:
                # Tried once: a lease that Redis keeps from us ends by itself.
                self._established = None
                self.begin_epoch()
                await self._lane.retire()
            return
        if not self._is_established:
            await self._establish(self._lease_of)
            await self._enrol()
            return
        if (left_s := self._outbox.due_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, self._coalesce_s))
            if time.monotonic() < self._outbox.due_s:
                return  # what came meanwhile made it due later or, where it is much, at once: the next step sees
        now = time.monotonic()
        if now >= self._lease_due_s:
            # Before the batch, which has routers read the lease where they do not follow the unit yet.
            await self._renew(self._lease_of, now)
        layers = None
        if self._changed and now >= self._snapshot_due_s and not self._outbox.batches:
            # Taken in one go with the batch that waits: the snapshot is the state after it.
            layers = self._unit.layers()
            self._changed = False
        try:
            await self._flush()
            if layers is not None and self._is_established:
                await self._lane.write_snapshot(layers, self._lane.sequence, self._lane.stream_id)
                self._metrics.snapshots.labels(self._unit.unit_id).inc()
                self._snapshot_due_s = now + self._snapshot_s
        except BaseException:
            self._changed = self._changed or layers is not None
            raise
        if time.monotonic() >= self._enrol_due_s:
            await self._enrol()

    async def _renew(self, lease_of: LeaseOf, now: float) -> None:
        news, self._lease_is_news = self._lease_is_news, False
        self._announcement_due = self._announcement_due or news
        try:
            await self._lane.renew(lease_of(self._lane.epoch))
        except BaseException:
            self._lease_is_news = self._lease_is_news or news
            raise
        self._enrol_due_s = now
        # What was registered meanwhile is due at once.
        self._lease_due_s = 0.0 if self._lease_is_news else now + self._renew_s

    async def _establish(self, lease_of: LeaseOf) -> None:
        self._lease_due_s = time.monotonic() + self._renew_s
        await self._lane.mint()
        # From here to the snapshot's layers nothing awaits: changes after this point go into batch 1 and on.
        generation = self._generation
        self._outbox.void()
        self._collecting = True
        self._changed = False
        layers = self._unit.layers()
        await self._lane.write_snapshot(layers, 0, self._lane.stream_id)
        if self._lease_of is lease_of:
            self._lease_is_news = False
        await self._lane.renew(lease_of(self._lane.epoch))
        await self._lane.publish((), [self._announcement(), self._heartbeat()])
        self._snapshot_due_s = time.monotonic() + self._snapshot_s
        self._established = generation
        self._fenced = False
        self._metrics.epochs.labels(self._unit.unit_id).inc()
        self._metrics.snapshots.labels(self._unit.unit_id).inc()
        log.info("epoch began", extra={"unit": self._unit.unit_id, "epoch": self._lane.epoch})

    async def _enrol(self) -> None:
        """Enter the registry; its failure keeps nothing else from Redis, since it may lie on a node of its own."""
        try:
            await self._lane.enrol()
        except (RedisError, OSError, TimeoutError) as error:
            self._complain(error)
            self._enrol_due_s = time.monotonic() + ENROL_AGAIN_S
        else:
            self._enrol_due_s = float("inf")
            self.ready.set()

    async def _flush(self) -> None:
        generation = self._generation
        oldest_s = self._outbox.take(time.monotonic())
        batches = self._outbox.batches
        others: list[Message] = []
        if self._beat_due:
            self._beat_due = False
            others.append(self._heartbeat(len(batches)))
        announced, self._announcement_due = self._announcement_due, False
        if announced:
            others.append(self._announcement())
        if not batches and not others:
            return
        try:
            await self._lane.publish(batches, others, self._outbox.behind_s(time.monotonic(), time.time()))
        except BaseException:
            self._announcement_due = self._announcement_due or announced
            raise
        if generation == self._generation:
            self._outbox.batches = []
        unit_id = self._unit.unit_id
        self._metrics.published.labels(unit_id).inc(sum(len(c.hashes) for batch in batches for c in batch))
        if batches and oldest_s is not None:
            self._metrics.lag.labels(unit_id).observe(time.monotonic() - oldest_s)

    def _heartbeat(self, batches: int = 0) -> Heartbeat:
        load = self._load
        beat = Heartbeat(
            self._unit.unit_id,
            self._lane.epoch,
            self._lane.sequence + batches,
            behind_s=time.monotonic() - self._outbox.read_until_s(self._read_until_s()),
        )
        if load is None:
            return beat
        return dataclasses.replace(
            beat,
            running=load.running,
            waiting=load.waiting,
            kv_usage=load.kv_usage,
            query_tokens=load.query_tokens,
            hit_tokens=load.hit_tokens,
        )

    def _announcement(self) -> StateChange:
        return StateChange(self._unit.unit_id, self._lane.epoch, self._state)

    async def _stand_by(self) -> None:
        """Another agent took the unit over, as in a rollout. Wait until its lease is gone."""
        if not self._fenced:
            log.warning("another agent writes for this unit; standing by", extra={"unit": self._unit.unit_id})
        self._fenced = True
        self._established = None
        self.begin_epoch()
        while not self._ending:
            await asyncio.sleep(self._renew_s * 2)
            try:
                if not await self._lane.taken():
                    return
            except (RedisError, OSError, TimeoutError) as error:
                await self._back_off(error)

    async def _back_off(self, error: Exception) -> None:
        self._failures += 1
        kind = self._complain(error)
        if kind == "OOM" and self._failures % RELIEVED_AFTER == 0:
            await self._relieve()
        longest_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._failures - 1, 10))
        await asyncio.sleep(longest_s * random.uniform(0.5, 1.0))

    def _complain(self, error: Exception) -> str:
        """Count a failure and tell of it, each kind at once and then every `SAY_AGAIN_S`; return its kind."""
        self._metrics.redis_errors.labels(self._unit.unit_id).inc()
        kind, now = faults.kind_of(error), time.monotonic()
        if kind != self._said or now - self._said_s >= SAY_AGAIN_S:
            self._said, self._said_s = kind, now
            log.error(
                f"redis at {self._redis_shown} does not take writes; trying again until it does",
                extra={"unit": self._unit.unit_id, "error": faults.told(error)},
            )
        return kind

    async def _relieve(self) -> None:
        """Our snapshot is of the past by now: make room for one of the newest state, each time more of it."""
        self._relieved += 1
        with contextlib.suppress(RedisError, OSError, TimeoutError, FencedError, LostError):
            await self._lane.relieve(kept_share=0.0 if self._relieved > 2 else 0.25**self._relieved)
        self.begin_epoch()
