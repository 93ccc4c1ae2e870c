"""Carries an engine's batches into its unit, through gaps, restarts and silence."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from replica.agent.metrics import AgentMetrics
from replica.agent.proof import SchemeProof
from replica.agent.sequencer import ReplayVerdict, Verdict
from replica.agent.unit import SAME_START_S, UnitState
from replica.agent.zmq_source import RECEIVE_MESSAGES, EventSource, Frame
from router.kv.wire import Change

log = logging.getLogger(__name__)

REPLAY_TIMEOUT_S = 2.0
REPLAY_TRIES = 4
"""A gap is asked for so often before silence makes the cache unknown: an engine may be slow for a while. Where it never
answered, and where it answered nothing so long, once."""
IDLE_CHECK_S = 3.0
"""Silence after which the tail is compared with a replay: a lost last batch shows in no other way. An idle engine is
asked for one batch that often."""
FIRST_CHECK_S = 0.5
"""After (re)connecting: what was published before the subscription took hold is lost without a sign."""

STRANGE_FRAMES = 3
"""Frames in a row that the engine's own record does not have are dropped; then the record is not believed."""

Publish = Callable[[Sequence[Change], float], None]
"""(changes, time.monotonic() of the oldest frame)."""


class UnitReader:
    """One unit's reading side.

    Args:
        unit: The state that batches go into.
        source: The engine's sockets.
        new_proof: Makes the proof of a new life of the engine.
        publish: Takes what changed; never blocks.
        begin_epoch: Called when what routers know is void.
    """

    def __init__(
        self,
        unit: UnitState,
        source: EventSource,
        new_proof: Callable[[], SchemeProof],
        publish: Publish,
        begin_epoch: Callable[[], None],
        metrics: AgentMetrics,
    ) -> None:
        self._unit = unit
        self._source = source
        self._new_proof = new_proof
        self._publish = publish
        self._begin_epoch = begin_epoch
        self._metrics = metrics
        self._life = unit.life
        self._connections = 0
        self._engine_was_down = False
        self._strange = 0
        self._answers = self._silent = False
        self._started_anew = False
        self._next_check_s = 0.0
        self.read_until_s = time.monotonic()
        """What the engine announced before this was handed on (`time.monotonic()`). An empty socket says nothing of
        that where the engine can be asked: what it sent may be lost, or the engine dead."""
        self.attached = asyncio.Event()
        """Set while our state is the engine's, or known to be out of reach: not before the first look, nor after a
        time without an engine."""

    def engine_was_down(self) -> None:
        """Say that the engine did not answer for a while: its cache may be another one now."""
        self._engine_was_down = True
        self._next_check_s = 0.0
        self.attached.clear()

    def engine_started(self, started_s: float) -> None:
        """Take when the engine's process began, as it tells itself: another time is another life of it."""
        known, self._unit.engine_started_s = self._unit.engine_started_s, started_s
        if known is not None and abs(started_s - known) > SAME_START_S:
            self._started_anew = True
            self._next_check_s = 0.0

    async def run(self) -> None:
        """Read until cancelled. No input ends it."""
        await self._source.connected(REPLAY_TIMEOUT_S)
        self._connections = self._source.connections()
        await self._resync()
        self._next_check_s = time.monotonic() + FIRST_CHECK_S
        while True:
            frames = await self._source.receive(max(0.01, min(1.0, self._next_check_s - time.monotonic())))
            looked_s = time.monotonic()
            for frame in frames:
                await self._take(frame)
            if not self._source.has_replay and len(frames) < RECEIVE_MESSAGES:
                self.read_until_s = looked_s
            if self._unit.reload_due:
                await self._reload()
            if self._source.malformed:
                self._unit.tally.skipped["malformed_frame"] = self._source.malformed
            if self._started_anew:
                self._note_new_life()
            now = time.monotonic()
            if frames:
                self._next_check_s = 0.0 if self._engine_was_down else now + IDLE_CHECK_S
                # Under a stream that never pauses, the other tasks get their turn here.
                await asyncio.sleep(0)
            if (connections := self._source.connections()) > self._connections:
                self._connections = connections
                log.info("event socket connected again", extra={"unit": self._unit.unit_id})
                await self._resync()
                self._next_check_s = time.monotonic() + FIRST_CHECK_S
            elif now >= self._next_check_s:
                await self._resync()
                self._next_check_s = time.monotonic() + IDLE_CHECK_S

    def _note_new_life(self) -> None:
        """The engine's process began anew: unless batches of it were read already, all that is known is void."""
        self._started_anew = False
        unit = self._unit
        newest_s, started_s = unit.last_event_s, unit.engine_started_s or 0.0
        if (unit.attached or len(unit.copies)) and (newest_s is None or newest_s < started_s - SAME_START_S):
            self._restart()

    async def _take(self, frame: Frame) -> None:
        unit = self._unit
        if unit.is_late(frame.payload):
            unit.tally.late += 1
            return
        verdict = unit.judge(frame.sequence, frame.payload)
        if verdict is Verdict.RESTART:
            self._restart()
            verdict = unit.judge(frame.sequence, frame.payload)
        if verdict is Verdict.GAP:
            unit.tally.gaps += 1
            answered = await self._fill(frame.received_s)
            verdict = unit.judge(frame.sequence, frame.payload)
            if verdict is Verdict.RESTART:
                self._restart()
                verdict = unit.judge(frame.sequence, frame.payload)
            if verdict is Verdict.GAP and answered and self._strange < STRANGE_FRAMES:
                # The engine's own record, read after the frame, does not have it: it is of a life that ended.
                self._strange += 1
                unit.tally.late += 1
                return
            if verdict is Verdict.GAP:
                log.warning("batches are lost; what the unit holds is unknown", extra={"unit": unit.unit_id})
                unit.give_up(frame.sequence)
                verdict = Verdict.IN_ORDER
        if verdict is Verdict.IN_ORDER:
            self._strange = 0
            changes = unit.accept(frame.sequence, frame.payload, frame.received_s)
            age_s = 0.0 if unit.last_event_s is None else max(0.0, time.time() - unit.last_event_s)
            self.read_until_s = max(self.read_until_s, min(frame.received_s, time.monotonic() - age_s))
            self._hand_on(changes, frame.received_s)

    async def _fill(self, received_s: float) -> bool:
        """Ask for what is missing; whether it could be had. What comes meanwhile waits in the socket."""
        for _ in range(REPLAY_TRIES if self._answers else 1):
            answered = await self._resync(received_s)
            if answered or not self._silent:
                return answered
        self._answers = False
        return False

    async def _reload(self) -> None:
        """Read the engine's whole history again, where it still has it."""
        self._unit.reload_due = False
        replayed = await self._source.replay(0, REPLAY_TIMEOUT_S)
        if replayed and replayed[0][0] == 0:
            self._unit.detach()
            _, changes = self._unit.absorb(0, replayed, time.monotonic())
            self._hand_on(changes, time.monotonic())

    async def _resync(self, received_s: float | None = None) -> bool:
        """Hold our position against the engine's own record, and fill in what was missed; whether that could be had."""
        received_s = time.monotonic() if received_s is None else received_s
        was_down, self._engine_was_down = self._engine_was_down, False
        answered = await self._ask_replay(received_s, was_down)
        if not self._engine_was_down:
            self.attached.set()
        return answered

    async def _ask_replay(self, received_s: float, was_down: bool) -> bool:
        unit = self._unit
        for _ in range(2):
            start, asked_s = unit.replay_from, time.monotonic()
            replayed = await self._source.replay(start, REPLAY_TIMEOUT_S)
            verdict = None
            self._silent = replayed is None
            if replayed is not None:
                self._answers = True
                verdict, changes = unit.absorb(start, replayed, received_s)
                self._hand_on(changes, received_s)
            outcome = "unanswered" if verdict is None else verdict.name.lower()
            self._metrics.replays.labels(unit.unit_id, outcome).inc()
            if verdict is ReplayVerdict.OTHER_LIFE:
                self._restart()
                continue
            if verdict is ReplayVerdict.IMPOSSIBLE:
                log.warning("the engine's replay makes no sense", extra={"unit": unit.unit_id})
            if verdict is None and not was_down:
                unit.take_over_unverified()
                self._hand_on([], received_s)
            if verdict in (ReplayVerdict.WHOLE, ReplayVerdict.TRUNCATED):
                self.read_until_s = max(self.read_until_s, asked_s)
            if was_down and verdict in (None, ReplayVerdict.IMPOSSIBLE):
                # Nobody can say whether this is still the cache that we know. The next replay is asked from 0.
                unit.detach()
                self._hand_on([], received_s)
            return verdict in (ReplayVerdict.WHOLE, ReplayVerdict.TRUNCATED)
        return False

    def _restart(self) -> None:
        log.warning("the engine began a new life", extra={"unit": self._unit.unit_id})
        self._unit.restart(self._new_proof())
        self._hand_on([], time.monotonic())

    def _hand_on(self, changes: Sequence[Change], received_s: float) -> None:
        if self._unit.life != self._life:
            # The new epoch's snapshot is made from the unit itself, so these changes are in it.
            self._life = self._unit.life
            self._begin_epoch()
        elif changes:
            self._publish(changes, received_s)
