"""Replicas that join get their fleet's hottest beginnings before traffic; those of one that drains get a new home.

A replica that joins is held out of the choice meanwhile (`Fleet` does that, for `timeout_s` at most, and not where no
other is left); one that drains finishes what it has, while its beginnings that nobody else holds are computed where
placement sends them. Each is sent as token ids with `max_tokens: 1`, at most `prefixes` of them, `tokens` of prompt in
all, `concurrency` at once. The requests are placed and counted in flight as any other, but are no client's: they show
in series of their own, and in no decision or access line.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from router.config_placement import WarmingConfig
from router.errors import WarmrouteError
from router.fleet.facts import Trust
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica, ReplicaState, Unit
from router.index.hot_prefixes import HotPrefix, HotPrefixes
from router.index.prefix_index import PrefixIndex
from router.kv.extra_keys import Lora
from router.placement import Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome
from router.scheduling.wishes import OWN
from router.telemetry.metrics import Metrics
from router.warming.engine_requests import AsksEngines

LOG = logging.getLogger("warmroute.warming")
LOOK_EVERY_S = 0.1
MAX_FAILURES = 3
"""In a row at a replica that joins: then it takes traffic as it is."""
NEARLY_ALL_SHARE = 0.9
"""Of its blocks: a replica that holds so many of a beginning is not sent it again."""
LOOKED_AT = 4
"""Times the bounds: so many of the hottest are looked at for those that are wanted."""
Purpose = Literal["join", "drain"]


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """A beginning, and the prompt that brings it about, with its chains."""

    prefix: HotPrefix
    prompt: Prompt


class Warmer:
    """Looks who joins and who drains.

    Attributes:
        config: In force; replaced as a whole by a reload.
    """

    def __init__(
        self,
        config: WarmingConfig,
        fleet: Fleet,
        index: PrefixIndex,
        placer: Placer,
        hot: HotPrefixes,
        engines: AsksEngines,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self._fleet = fleet
        self._index = index
        self._placer = placer
        self._hot = hot
        self._engines = engines
        self._metrics = metrics
        self._clock = clock
        self._joining: set[Replica] = set()
        self._drained: set[Replica] = set()
        self._beginning = f"warmroute-warming-{os.urandom(4).hex()}-"
        self._count = itertools.count(1)

    async def run(self) -> None:
        """Look until cancelled."""
        self._joining.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                for work in self.look():
                    group.create_task(work())
                await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return what is to be done for replicas that joined or began to drain since the last time."""
        found: list[Callable[[], Coroutine[Any, Any, None]]] = []
        present = set(self._fleet.replicas.values())
        self._drained &= {replica for replica in present if replica.draining}
        for replica in present:
            if replica.draining:
                if self.config.drain and replica not in self._drained and replica.down_reason is None:
                    self._drained.add(replica)
                    found.append(partial(self._rehome, replica))
            elif replica.held_until_s is not None and replica not in self._joining and replica.units:
                self._joining.add(replica)
                found.append(partial(self._warm, replica))
        return found

    async def _warm(self, replica: Replica) -> None:
        try:
            left_s = (replica.held_until_s or 0.0) - self._clock()
            async with asyncio.timeout(max(0.0, left_s)):
                if any(unit.trust is Trust.NONE for unit in replica.units):
                    return

                def lacks(item: _Item) -> bool:
                    return not any(self._holds(unit, item) for unit in replica.units)

                items = await self._items(lambda model: not replica.models or model in replica.models, lacks)
                LOG.info("a replica that joins is warmed", extra=_facts(replica, items))
                await self._compute("join", items, lacks, lambda: self._all_but(replica), replica)
        except TimeoutError:
            LOG.info("a replica that joined takes requests before it is warm", extra={"replica": replica.replica_id})
        finally:
            self._joining.discard(replica)
            self._fleet.let_in(replica)

    async def _rehome(self, replica: Replica) -> None:
        config = self.config

        def only_there(item: _Item) -> bool:
            return any(self._holds(unit, item) for unit in replica.units) and not any(
                self._holds(unit, item)
                for other in self._fleet.replicas.values()
                if other is not replica and other.state(self._clock()) is ReplicaState.READY
                for unit in other.units
            )

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(config.timeout_s):
                items = await self._items(lambda model: True, only_there)
                LOG.info("what a draining replica alone holds gets a new home", extra=_facts(replica, items))
                await self._compute("drain", items, only_there, lambda: {replica.replica_id}, None)

    async def _items(self, serves: Callable[[str], bool], wanted: Callable[[_Item], bool]) -> list[_Item]:
        """Return what is to be computed, the hottest first, within the bounds."""
        config = self.config
        found: list[_Item] = []
        left_tokens = config.tokens
        hottest = self._hot.hottest(
            LOOKED_AT * config.prefixes, LOOKED_AT * config.tokens, self._clock(), lambda model, _: serves(model)
        )
        for prefix in hottest:
            tokens = len(prefix.token_ids)
            prompt = Prompt(
                Kind.COMPLETION, prefix.model, False, prefix.token_ids, tokens, salt=prefix.salt, max_tokens=1
            )
            for scheme, lora in self._fleet.namings(prefix.model):
                await asyncio.to_thread(prompt.chain, scheme, lora)
            item = _Item(prefix, prompt)
            if prefix.fresh_tokens <= left_tokens and wanted(item):
                left_tokens -= prefix.fresh_tokens
                found.append(item)
                if len(found) >= config.prefixes:
                    break
        return found

    def _holds(self, unit: Unit, item: _Item) -> bool:
        """Whether a unit holds nearly all of a beginning, by the names that its engine has for its blocks now."""
        served = unit.replica.models.get(item.prefix.model)
        lora = Lora(served.name, served.root) if served is not None and served.parent is not None else None
        chain = item.prompt.chain(unit.scheme, lora) if unit.scheme is not None else []
        return bool(chain) and self._index.leading(unit.slot, chain) >= NEARLY_ALL_SHARE * len(chain)

    def _all_but(self, replica: Replica) -> Collection[str]:
        return self._fleet.replicas.keys() - {replica.replica_id}

    async def _compute(
        self,
        purpose: Purpose,
        items: list[_Item],
        wanted: Callable[[_Item], bool],
        excluded: Callable[[], Collection[str]],
        target: Replica | None,
    ) -> None:
        """Have all of them computed, the hottest first, so many at once."""
        waiting = iter(items)
        failures = 0

        async def one_after_the_other() -> None:
            nonlocal failures
            for item in waiting:
                if target is not None and (target.draining or failures >= MAX_FAILURES):
                    return
                # Another router may have had it computed meanwhile.
                if wanted(item):
                    failures = 0 if await self._one(purpose, item, excluded) else failures + 1

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.config.concurrency, len(items))):
                group.create_task(one_after_the_other())

    async def _one(self, purpose: Purpose, item: _Item, excluded: Callable[[], Collection[str]]) -> bool:
        tokens = item.prompt.tokens
        request_id = f"{self._beginning}{next(self._count)}"
        begun_s = self._clock()
        try:
            placement = self._placer.place(item.prompt, request_id, begun_s, excluded(), OWN)
        except WarmrouteError:
            self._metrics.warmed(purpose, "no_replica", 0)
            return False
        outcome = Outcome(None, "cancelled", None, None, None, None, 0.0, aborted=True)
        try:
            replica, unit = placement.replica, placement.unit
            rank = unit.rank if len(replica.units) > 1 else None
            answer = await self._engines.compute(replica.url, rank, item.prefix, request_id)
            cached, seconds = answer.cached_tokens, self._clock() - begun_s
            error = None if answer.status is not None else "upstream_broken"
            outcome = Outcome(answer.status, error, tokens, cached, 1, None, seconds)
        finally:
            self._placer.finish(placement, self._clock(), outcome)
        good = outcome.status == 200
        result = "computed" if good else "failed" if outcome.status is None else "refused"
        self._metrics.warmed(purpose, result, tokens - (cached or 0) if good else 0)
        return good


def _facts(replica: Replica, items: Collection[_Item]) -> dict[str, object]:
    tokens = sum(item.prefix.fresh_tokens for item in items)
    return {"replica": replica.replica_id, "prefixes": len(items), "tokens": tokens}
