"""One unit in operation: its state, its reading and writing side, and what its lease says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import zmq.asyncio

from replica.agent import probe, redis_link
from replica.agent.adapters import adapters
from replica.agent.doubts import DoubtReader
from replica.agent.engine import Engine, EngineFacts, RankSource
from replica.agent.lane import Lane
from replica.agent.metrics import AgentMetrics
from replica.agent.private_state import StateFile
from replica.agent.proof import SchemeProof
from replica.agent.reader import UnitReader
from replica.agent.settings import AgentSettings
from replica.agent.sink import UnitSink
from replica.agent.unit import UnitState
from replica.agent.zmq_source import EventSource
from replica.errors import EngineError
from router.kv import registration
from router.kv.client.client import RedisClient
from router.kv.engine_metrics import CacheConfig
from router.kv.registration import Engine as RegisteredEngine
from router.kv.registration import Registration
from router.kv.schemes import Scheme
from router.kv.wire import Change

log = logging.getLogger(__name__)

MAX_PROBES = 5
PROBE_PATIENCE_S = 5.0
"""How long blocks without a usable root may come in before a probe is sent all the same."""
UNTOLD_PROBE_TOKENS = 128
"""Length of a probe where nothing tells the block size: whole blocks of every usual size."""


class RankAgent:
    """One data-parallel rank of the engine.

    Args:
        settings: The operator's.
        source: The rank's sockets.
        facts: What the engine says of itself.
        engine: For probes.
        redis, context, metrics: Shared by all ranks.
        text_files: Tokenizer files that lie in Redis by now, as name to SHA-256.
    """

    def __init__(
        self,
        settings: AgentSettings,
        source: RankSource,
        facts: EngineFacts,
        engine: Engine,
        redis: RedisClient,
        context: zmq.asyncio.Context,
        metrics: AgentMetrics,
        text_files: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.rank = source.rank
        self.unit_id = f"{settings.replica_id}/{source.rank}"
        self._settings = settings
        self._source = source
        self._facts = facts
        self._engine = engine
        self._text_files = text_files
        self._started_s = time.time()
        self._cache = facts.cache(self.rank)
        adapter = adapters()[facts.engine]()
        self.unit = UnitState(self.unit_id, adapter, self._new_proof(), self._cache.num_blocks, maps=True)
        self.unit.adapters = _roots(facts)
        self.unit.engine_started_s = facts.started_s
        self._state: StateFile | None = None
        if settings.state_dir is not None:
            self._state = StateFile(settings.state_dir, self.unit_id, settings.engine_url)
            saved = self._state.read()
            if saved is not None:
                self.unit.offer(saved)
        lane = Lane(redis, settings.keys, self.unit_id, settings.lease_s, settings.snapshot_s)
        shown = redis_link.shown(settings.redis_url)
        self.sink = UnitSink(
            self.unit,
            lane,
            settings.lease_s,
            settings.snapshot_s,
            shown,
            metrics,
            read_until_s=lambda: time.monotonic() if self._reader is None else self._reader.read_until_s,
        )
        self._sockets: EventSource | None = None
        self._reader: UnitReader | None = None
        if source.events is not None:
            self._sockets = EventSource(context, source.events, source.replay)
            self._reader = UnitReader(
                self.unit, self._sockets, self._new_proof, self._publish, self._begin_epoch, metrics
            )
        self._doubts = DoubtReader(redis, settings.keys, self.unit, lambda: self.sink.epoch, self._publish, metrics)
        self._tasks: list[asyncio.Task[None]] = []
        self._registered: Registration | None = None
        self._serving = False
        self._draining = False
        self._metrics = metrics
        self._judged: tuple[SchemeProof, str] | None = None
        self._warned: set[str] = set()
        self._probes = 0
        self._probe_due_s = 0.0
        self._probe_task: asyncio.Task[None] | None = None
        self._probe_failure: str | None = None

    def start(self) -> None:
        """Start reading and writing; nothing is registered before `serve`."""
        self._tasks = [asyncio.create_task(self.sink.run(), name=f"sink {self.unit_id}")]
        if self._reader is not None:
            self._tasks.append(asyncio.create_task(self._reader.run(), name=f"reader {self.unit_id}"))
            self._tasks.append(asyncio.create_task(self._keep_state(), name=f"state {self.unit_id}"))
            self._tasks.append(asyncio.create_task(self._doubts.run(), name=f"doubts {self.unit_id}"))

    async def serve(self) -> None:
        """Register the unit, once the engine's cache was looked at.

        Raises:
            Exception: What ended a task of the unit before that.
        """
        if self._reader is not None:
            attached = asyncio.create_task(self._reader.attached.wait())
            try:
                await asyncio.wait({attached, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                attached.cancel()
            for task in self._tasks:
                if task.done():
                    task.result()
        self._serving = True
        self._registered = None
        self.refresh()

    def engine_gone(self) -> None:
        """Take the unit out of the fleet until `serve`."""
        self._serving = False
        self.sink.register(None)
        if self._reader is not None:
            self._reader.engine_was_down()

    def drain(self, draining: bool) -> None:
        """Have routers send no new requests, or let them again; the lease says so with the next `refresh`."""
        self._draining = draining

    def engine_started(self, started_s: float) -> None:
        """Take when the engine's process began, as it tells itself."""
        if self._reader is not None:
            self._reader.engine_started(started_s)

    async def _keep_state(self) -> None:
        """Keep the agent's own state as often as a snapshot, where anything came since."""
        kept: object = None
        while self._state is not None:
            await asyncio.sleep(self._settings.snapshot_s)
            if self.unit.position != kept:
                kept = self.unit.position
                await self._save()

    async def _save(self) -> None:
        saved = self.unit.saved(self._settings.engine_url)
        if self._state is not None and saved is not None:
            await asyncio.to_thread(self._state.write, saved)

    def learn(self, facts: EngineFacts) -> None:
        """Take over what the engine says of itself now."""
        self._facts = facts
        self.unit.adapters = _roots(facts)
        if self.unit.mapped is not None:
            self.unit.mapped.adapters = self.unit.adapters
        cache = facts.cache(self.rank)
        if cache not in (self._cache, CacheConfig()):  # one that tells nothing once is still the one that it was
            self._cache = cache
            self.unit.copies.num_blocks = cache.num_blocks
            self.unit.proof = self._new_proof()

    def refresh(self) -> None:
        """Write a new lease where what it says has changed, and send a probe where one is due."""
        if not self._serving:
            return
        self._tell()
        self._probe_when_due()

    def _tell(self) -> None:
        """Write a lease where what it says has changed, and tell the operator of what keeps a proof away."""
        said = self._registration(0)
        if said != self._registered:
            self._registered = said
            self.sink.register(self._lease, said.state)
        proof = self.unit.proof
        self._judged = (proof, self._judgement())
        if proof.state == "refuted" and self._own_scheme() is None:
            self._warn_once("refuted", f"blocks can't be credited: {proof.reason}")
        if proof.sizes_differ:
            sizes = f"the engine's events have blocks of {proof.seen_size} tokens, its metrics say {proof.told_size}"
            self._warn_once("block_size", f"{sizes}: the events' size is taken")

    def _warn_once(self, kind: str, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._metrics.conflicts.labels(self.unit_id, kind).inc()
            log.warning(text, extra={"unit": self.unit_id})

    def _publish(self, changes: Sequence[Change], received_s: float) -> None:
        self.sink.offer(changes, received_s)
        self._tell_when_judged()

    def _begin_epoch(self) -> None:
        self.sink.begin_epoch()
        self._tell_when_judged()

    def _tell_when_judged(self) -> None:
        """Routers are to know a unit as EXACT or MAPPED when its blocks come, not when the next lease is due."""
        if self._serving and (self.unit.proof, self._judgement()) != self._judged:
            self._tell()

    def failures(self) -> list[BaseException]:
        """Return what ended a task that should not have ended."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]

    def status(self) -> dict[str, Any]:
        """Return the unit's status for /healthz."""
        trust, reason = self._trust()
        return {
            "registered": self._serving and self.sink.healthy,
            "draining": self._draining,
            "epoch": self.sink.epoch,
            "blocks": len(self.unit.copies),
            "trust": trust,
            "reason": reason,
        }

    async def stop(self, timeout_s: float) -> None:
        """End all tasks and take the lease away."""
        self.sink.end()
        tasks = [*self._tasks, *([self._probe_task] if self._probe_task else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        await self._save()
        if self._sockets is not None:
            self._sockets.close()
        await self.sink.close(timeout_s)

    def _new_proof(self) -> SchemeProof:
        cache = self._cache
        return SchemeProof(cache.algorithm, cache.block_size, self._settings.hash_seed, cache.hash_unit)

    def _lease(self, epoch: int) -> bytes:
        return registration.encode(self._registration(epoch), self._settings.registration_secret)

    def _registration(self, epoch: int) -> Registration:
        trust, reason = self._trust()
        scheme = self._own_scheme() or self.unit.proof.scheme
        algorithm = str(scheme.algorithm) if scheme else self._cache.algorithm or ""
        size = scheme.block_size if scheme else self.unit.proof.block_size or 0
        pages = size // self.unit.mapped.page_tokens if self.unit.mapped else 1
        return Registration(
            unit=self.unit_id,
            replica_id=self._settings.replica_id,
            rank=self.rank,
            ranks=len(self._facts.ranks),
            url=self._settings.advertise,
            models=list(self._facts.models),
            algorithm=algorithm[:64],
            seed=scheme.seed if scheme else self._settings.hash_seed,
            block_size=size,
            num_blocks=self._cache.num_blocks and self._cache.num_blocks // max(1, pages),
            trust=trust,
            reason=reason,
            epoch=epoch,
            engine=RegisteredEngine(self._facts.engine, self._facts.version),
            state="draining" if self._draining else "ready",
            started=self._started_s,
            whole=(self.unit.attached and not self.unit.head_lost) or msgspec.UNSET,
            text_files=dict(self._text_files()),
            group_sizes={group: tokens for group, tokens in self.unit.group_sizes.items() if tokens > size > 0}
            or msgspec.UNSET,
            # Names of our own may be missing where an end's parent is not known any more.
            group_tails=(dict(self.unit.group_tails) if trust == "exact" else None) or msgspec.UNSET,
        )

    def _trust(self) -> tuple[Any, str | None]:
        if self._cache.prefix_caching is False:
            return "none", "the engine runs without a prefix cache"
        if self._reader is None:
            return "approximate", "the engine publishes no KV events; start it with --kv-events-config"
        if self.unit.unverified:
            return "approximate", "what it held before its agent restarted is not verified by an event yet"
        if self.unit.proof.state == "proven":
            return "exact", None
        if self._own_scheme() is not None:
            return "mapped", f"blocks are named by their tokens: {self.unit.proof.reason}"[:1024]
        reason = self.unit.proof.reason or ""
        if self.unit.proof.state == "open" and self._probe_failure:
            reason += f"; probe: {self._probe_failure}"
        return "approximate", reason[:1024]

    def _judgement(self) -> str:
        if self.unit.unverified:
            return "unverified"
        return "mapped" if self._own_scheme() is not None else self.unit.proof.state

    def _own_scheme(self) -> Scheme | None:
        """Our own names for the unit's blocks, once any block has one."""
        mapped = self.unit.mapped
        return mapped.scheme if mapped is not None and (mapped.is_naming or len(mapped) > 0) else None

    def _probe_when_due(self) -> None:
        nothing_to_prove = self._reader is None or self.unit.proof.state != "open"
        if nothing_to_prove or self._cache.prefix_caching is False or self._draining:
            self._probe_due_s = 0.0
            return
        now = time.monotonic()
        if self._probe_due_s == 0.0:
            # An engine whose life we saw from its start shows a root with its first plain request.
            late = self.unit.head_lost or not self.unit.attached
            self._probe_due_s = now if late else now + PROBE_PATIENCE_S
            self._probes = 0
        held = self.unit.head_lost or not self.unit.attached or len(self.unit.copies) > 0
        if held and now >= self._probe_due_s and self._probes < MAX_PROBES:
            self._probes += 1
            self._probe_due_s = now + PROBE_PATIENCE_S * 2**self._probes
            self._probe_task = asyncio.create_task(self._probe(), name=f"probe {self.unit_id}")

    async def _probe(self) -> None:
        size = self.unit.proof.block_size or UNTOLD_PROBE_TOKENS
        try:
            model = probe.probed_model(self._facts.models, size)
            tokens = probe.probe_tokens(size, random.SystemRandom())
            self.unit.proof.expect_probe(tokens[:size])
            await probe.send(self._engine, model, tokens, self.rank if len(self._facts.ranks) > 1 else None)
            self._probe_failure = None
            log.info("probe sent", extra={"unit": self.unit_id})
        except EngineError as error:
            self._probe_failure = str(error)[:200]
            log.warning("probe failed", extra={"unit": self.unit_id, "error": str(error)})


def _roots(facts: EngineFacts) -> dict[str, str]:
    return {model.name: model.root for model in facts.models if model.parent is not None}
