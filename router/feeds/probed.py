"""Replicas without an agent, wherever their addresses come from: each is asked by probes what it is and how it does.

No agent tells what they hold, so their trust is APPROXIMATE, or NONE where the engine says it has no prefix cache.
Two failed probes in a row take a replica out, one good one brings it back. Where an agent registers the same address,
its facts hold and the probes are silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.config import ModelConfig
from router.feeds.directory import Directory
from router.feeds.health import EngineFigures, EngineProber
from router.feeds.membership import FAILED_PROBES_DOWN
from router.fleet.facts import EngineLoad, ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.kv.schemes import HashAlgorithm, Scheme
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds.probed")
ROUND_S = 1.0
"""Seconds between probes of one replica."""
MODELS_EACH_ROUNDS = 5
"""Models and adapters change rarely: they are asked for in every fifth round."""
UNKNOWN_FIGURES = EngineFigures()


@dataclass(frozen=True, slots=True)
class Member:
    """A replica as its source knows it.

    Attributes:
        replica_id: Its name, which clients see.
        url: Its address, normalised.
        life: Names the process behind name and address, where the source tells (a pod's uid); "" where it doesn't.
            Another one means that nothing is cached there.
        draining: It takes no new requests, and those that run may end.
        out_reason: Why it may take none, though its probes may pass; None: it may.
    """

    replica_id: str
    url: str
    life: str = ""
    draining: bool = False
    out_reason: str | None = None

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes it this replica and no other."""
        return self.replica_id, self.url, self.life


@dataclass(slots=True, eq=False)
class _Followed:
    member: Member
    models: tuple[ServedModel, ...]
    figures: EngineFigures = UNKNOWN_FIGURES
    failed_probes: int = 0
    rounds: int = 0
    announced: bool = False
    refused: bool = False
    asked: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def unit_id(self) -> str:
        return f"{self.member.replica_id}/0"

    @property
    def is_down(self) -> bool:
        return self.failed_probes >= FAILED_PROBES_DOWN


@dataclass(frozen=True, slots=True)
class Probing:
    """What all sources probe with, and whom they tell.

    Attributes:
        directory: Where membership is announced.
        clock: The fleet's clock, in seconds.
    """

    fleet: Fleet
    metrics: Metrics
    directory: Directory
    prober: EngineProber
    clock: Callable[[], float] = time.monotonic


class ProbedReplicas:
    """The replicas of one source.

    Args:
        source: Its name in the fleet: `static`, `dns` or `kubernetes`.
        models: For names and block sizes until engines tell theirs.
        is_certain: Members are announced before any probe: the operator listed them. Others first show that an engine
            is there.
    """

    def __init__(
        self,
        source: str,
        models: Sequence[ModelConfig],
        probing: Probing,
        *,
        is_certain: bool = False,
    ) -> None:
        self._source = source
        self._fleet = probing.fleet
        self._metrics = probing.metrics
        self._directory = probing.directory
        self._prober = probing.prober
        self._clock = probing.clock
        self._is_certain = is_certain
        self._followed: dict[str, _Followed] = {}
        self._group: asyncio.TaskGroup | None = None
        self.models = tuple(models)
        """The configuration's, which may change."""

    def set_members(self, members: Sequence[Member]) -> None:
        """Follow these from now on, names once each. Those that are the same as before go on as they are."""
        wanted = {member.replica_id: member for member in members}
        for name, followed in list(self._followed.items()):
            new = wanted.get(name)
            if new is None or new.identity != followed.member.identity:
                self._forget(followed)
        for name, member in wanted.items():
            known = self._followed.get(name)
            if known is None:
                self._followed[name] = known = _Followed(
                    member, tuple(ServedModel(m.name, m.name) for m in self.models)
                )
                if self._is_certain:
                    self._announce(known)
            elif known.member != member:
                known.member = member
                if known.announced:
                    self._announce(known)
                    self._mark(known)
                known.changed.set()
        self._follow_all()

    def passes(self, replica_id: str) -> bool:
        """Tell whether an engine answers there: it has passed its last probes."""
        followed = self._followed.get(replica_id)
        return followed is not None and followed.asked and followed.failed_probes == 0

    def reasons(self) -> list[str]:
        """Why the first round is not complete: replicas that were not asked yet."""
        left = sum(not followed.asked for followed in self._followed.values())
        return [f"replicas: {left} of {len(self._followed)} not asked yet"] if left else []

    async def run(self) -> None:
        """Probe each replica every `round_s`, until cancelled. One that hangs delays no other."""
        async with asyncio.TaskGroup() as self._group:
            for followed in self._followed.values():
                followed.task = None
            self._follow_all()
            await asyncio.Event().wait()  # the list may change, and be empty for a while

    def _follow_all(self) -> None:
        if self._group is None:
            return
        for followed in self._followed.values():
            if followed.task is None:
                followed.task = self._group.create_task(self._follow(followed))

    def _forget(self, followed: _Followed) -> None:
        del self._followed[followed.member.replica_id]
        if followed.task is not None:
            followed.task.cancel()
        self._directory.withdraw(self._source, followed.member.url, followed.member.replica_id)

    async def _follow(self, followed: _Followed) -> None:
        while True:
            followed.changed.clear()
            if not self._directory.is_registered(followed.member.url):
                try:
                    await self._probe(followed)
                except Exception:  # the other replicas' probes go on whatever one engine answers
                    LOG.exception("probe failed", extra={"replica": followed.member.replica_id})
            followed.asked = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S):
                    await followed.changed.wait()

    async def _probe(self, followed: _Followed) -> None:
        url, name = followed.member.url, followed.member.replica_id
        passed = await self._prober.is_healthy(url)
        self._metrics.engine_probed(passed=passed)
        was_down = followed.is_down
        if not passed:
            followed.failed_probes += 1
            self._report(followed, None)
            if followed.is_down and not was_down:
                LOG.warning("engine fails its probes: no requests go there", extra={"replica": name})
            self._mark(followed)
            return
        figures = await self._prober.figures(url)
        if figures is not None:
            followed.figures = figures
        if followed.rounds % MODELS_EACH_ROUNDS == 0 or was_down:
            followed.models = await self._prober.models(url) or followed.models
        followed.failed_probes = 0
        followed.rounds += 1
        if self._directory.is_registered(url):
            return  # an agent registered it while it was asked
        self._announce(followed)
        self._mark(followed)
        self._report(followed, figures)
        if was_down:
            LOG.info("engine is back", extra={"replica": name})

    def _mark(self, followed: _Followed) -> None:
        if self._directory.is_registered(followed.member.url) or not followed.announced:
            return
        name = followed.member.replica_id
        if followed.is_down:
            self._fleet.mark_down(name, "fails its health probes")
        elif followed.member.out_reason is not None:
            self._fleet.mark_down(name, followed.member.out_reason)
        elif followed.failed_probes == 0 and followed.rounds:
            self._fleet.mark_up(name)

    def _report(self, followed: _Followed, figures: EngineFigures | None) -> None:
        if self._directory.is_registered(followed.member.url):
            return
        load = None
        if figures is not None and figures.running is not None and figures.waiting is not None:
            load = EngineLoad(
                figures.running,
                figures.waiting,
                figures.kv_usage or 0.0,
                self._clock(),
                figures.query_tokens,
                figures.hit_tokens,
            )
        self._fleet.report_load(followed.unit_id, load)

    def _announce(self, followed: _Followed) -> None:
        figures, member = followed.figures, followed.member
        block_size = figures.block_size or _block_size(self.models, followed.models)
        trust, reason = Trust.APPROXIMATE, "no agent tells what it holds"
        if figures.prefix_caching is False:
            trust, reason = Trust.NONE, "its engine has prefix caching off"
        scheme = Scheme(HashAlgorithm.SHA256_CBOR, block_size)
        unit = UnitFacts(followed.unit_id, 0, scheme, trust, figures.num_blocks, reason)
        facts = ReplicaFacts(
            member.replica_id, member.url, self._source, followed.models, (unit,), draining=member.draining
        )
        followed.announced = self._directory.announce(facts)
        if not followed.announced and not followed.refused:
            LOG.warning(
                "its name belongs to another address: give each replica a name of its own (replicas[].id)",
                extra={"replica": member.replica_id, "source": self._source},
            )
        followed.refused = not followed.announced


def _block_size(models: Sequence[ModelConfig], served: Sequence[ServedModel]) -> int:
    names = {model.name for model in served}
    return next((model.block_size for model in models if model.name in names), 16)
