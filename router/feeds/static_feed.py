"""Replicas of the configuration: announced at once, then asked what they are.

No agent tells what they hold, so their trust is APPROXIMATE, or NONE where the engine says it has no prefix cache.
Two failed probes in a row take a replica out, one good one brings it back. Where an agent registers the same address,
its facts hold and this feed keeps silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from router.config import ModelConfig, RouterConfig
from router.feeds.directory import Directory
from router.feeds.health import EngineFigures, EngineProber
from router.feeds.membership import FAILED_PROBES_DOWN
from router.fleet.facts import EngineLoad, ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.kv.addresses import normalised_url
from router.kv.schemes import HashAlgorithm, Scheme
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds.static")
ROUND_S = 1.0
MODELS_EACH_ROUNDS = 5
"""Models and adapters change rarely: they are asked for in every fifth round."""
UNKNOWN_FIGURES = EngineFigures()


@dataclass(slots=True, eq=False)
class _Configured:
    replica_id: str
    url: str
    models: tuple[ServedModel, ...]
    figures: EngineFigures = UNKNOWN_FIGURES
    failed_probes: int = 0
    rounds: int = 0

    @property
    def unit_id(self) -> str:
        return f"{self.replica_id}/0"


class StaticFeed:
    """Probes the replicas that the configuration names.

    Args:
        config: `replicas`, and `models` for names and block sizes until engines tell theirs.
        directory: Where membership is announced.
        clock: The fleet's clock, in seconds.
        round_s: Seconds between probes of one replica.
    """

    def __init__(
        self,
        config: RouterConfig,
        fleet: Fleet,
        metrics: Metrics,
        directory: Directory,
        prober: EngineProber,
        clock: Callable[[], float] = time.monotonic,
        round_s: float = ROUND_S,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._directory = directory
        self._prober = prober
        self._clock = clock
        self._round_s = round_s
        self._models = config.models
        self._replicas = _configured(config)
        self._probed: set[str] = set()
        self._following: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def announce_all(self) -> None:
        """Put every configured replica into the fleet, before anything is known of it."""
        for replica in self._replicas:
            self._announce(replica)

    def configure(self, config: RouterConfig) -> None:
        """Follow the replicas of another configuration; those that are in both go on as they are."""
        self._models = config.models
        known = {(replica.replica_id, replica.url): replica for replica in self._replicas}
        wanted = [known.pop((new.replica_id, new.url), new) for new in _configured(config)]
        for gone in known.values():
            task = self._following.pop(gone.replica_id, None)
            if task is not None:
                task.cancel()
            self._directory.withdraw("static", gone.url, gone.replica_id)
            self._probed.discard(gone.url)
        self._replicas = wanted
        self._follow_all()

    def reasons(self) -> list[str]:
        """Why the first round is not complete: replicas that were not asked yet."""
        left = [r.replica_id for r in self._replicas if r.url not in self._probed]
        return [f"replicas: {len(left)} of {len(self._replicas)} not asked yet"] if left else []

    async def run(self) -> None:
        """Probe each replica every `round_s`, until cancelled. One that hangs delays no other."""
        async with asyncio.TaskGroup() as self._group:
            self._following = {}
            self._follow_all()
            await asyncio.Event().wait()  # the list may change, and be empty for a while

    def _follow_all(self) -> None:
        if self._group is None:
            return
        for replica in self._replicas:
            if replica.replica_id not in self._following:
                self._announce(replica)
                self._following[replica.replica_id] = self._group.create_task(self._follow(replica))

    async def _follow(self, replica: _Configured) -> None:
        while True:
            if not self._directory.is_registered(replica.url):
                try:
                    await self._probe(replica)
                except Exception:  # the other replicas' probes go on whatever one engine answers
                    LOG.exception("probe failed", extra={"replica": replica.replica_id})
            self._probed.add(replica.url)
            await asyncio.sleep(self._round_s)

    async def _probe(self, replica: _Configured) -> None:
        passed = await self._prober.is_healthy(replica.url)
        self._metrics.engine_probed(passed=passed)
        if not passed:
            replica.failed_probes += 1
            self._report(replica, None)
            if replica.failed_probes >= FAILED_PROBES_DOWN:
                if replica.failed_probes == FAILED_PROBES_DOWN:
                    LOG.warning("engine fails its probes: no requests go there", extra={"replica": replica.replica_id})
                self._mark(replica, down=True)
            return
        returned = replica.failed_probes >= FAILED_PROBES_DOWN
        replica.failed_probes = 0
        figures = await self._prober.figures(replica.url)
        if figures is not None:
            replica.figures = figures
        if replica.rounds % MODELS_EACH_ROUNDS == 0 or returned:
            replica.models = await self._prober.models(replica.url) or replica.models
        replica.rounds += 1
        if self._directory.is_registered(replica.url):
            return  # an agent registered it while it was asked
        self._announce(replica)
        self._mark(replica, down=False)
        self._report(replica, figures)
        if returned:
            LOG.info("engine is back", extra={"replica": replica.replica_id})

    def _mark(self, replica: _Configured, *, down: bool) -> None:
        if self._directory.is_registered(replica.url):
            return
        if down:
            self._fleet.mark_down(replica.replica_id, "fails its health probes")
        else:
            self._fleet.mark_up(replica.replica_id)

    def _report(self, replica: _Configured, figures: EngineFigures | None) -> None:
        if self._directory.is_registered(replica.url):
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
        self._fleet.report_load(replica.unit_id, load)

    def _announce(self, replica: _Configured) -> None:
        figures = replica.figures
        block_size = figures.block_size or _block_size(self._models, replica.models)
        trust, reason = Trust.APPROXIMATE, "no agent tells what it holds"
        if figures.prefix_caching is False:
            trust, reason = Trust.NONE, "its engine has prefix caching off"
        scheme = Scheme(HashAlgorithm.SHA256_CBOR, block_size)
        unit = UnitFacts(replica.unit_id, 0, scheme, trust, figures.num_blocks, reason)
        facts = ReplicaFacts(replica.replica_id, replica.url, "static", replica.models, (unit,))
        if not self._directory.announce(facts):
            LOG.warning("its name belongs to another address: set replicas[].id", extra={"replica": replica.replica_id})


def _configured(config: RouterConfig) -> list[_Configured]:
    """Return the replicas; one without an id is named `rN` by its position: clients see names, never addresses."""
    models = tuple(ServedModel(model.name, model.name) for model in config.models)
    taken = {replica.id for replica in config.replicas}
    configured = []
    for position, replica in enumerate(config.replicas):
        name = replica.id or f"r{position}"
        while not replica.id and name in taken:
            name += "x"
        taken.add(name)
        configured.append(_Configured(name, normalised_url(replica.url), models))
    return configured


def _block_size(models: tuple[ModelConfig, ...], served: tuple[ServedModel, ...]) -> int:
    names = {model.name for model in served}
    return next((model.block_size for model in models if model.name in names), 16)
