"""The state that placement works on, made once: who forgets what when a replica or its cache is gone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from router.config import RouterConfig
from router.config_placement import WarmingConfig
from router.fleet.facts import Trust
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica, Unit
from router.fleet.vouching import Vouching
from router.index.announced import AnnouncedBlocks
from router.index.approximate import ApproximateMemory, memory_slot
from router.index.expected import ExpectedBlocks
from router.index.hot_prefixes import HotPrefixes
from router.index.prefix_index import PrefixIndex
from router.placement import Placer
from router.proving import Proving
from router.request.prompt import Prompt
from router.telemetry.fleet_series import FleetSeries
from router.telemetry.metrics import Metrics
from router.telemetry.traces import Tracer
from router.telemetry.trust_log import log_trust_change
from router.warming.engine_requests import AsksEngines
from router.warming.warmer import Warmer

Trace = Callable[[Prompt, Sequence[int], int], dict[str, Any] | None]


class Core:
    """The owners of state, and the placer over them. No I/O.

    Attributes:
        hot: Beginnings of prompts that come often; filled only where warming is configured.
    """

    def __init__(self, config: RouterConfig, clock: Callable[[], float]) -> None:
        self.index = PrefixIndex()
        self.expected = ExpectedBlocks()
        self.approximate = ApproximateMemory(self.index)
        self.hot = HotPrefixes()
        self.fleet = Fleet(
            **_fleet_settings(config),
            on_unit_withdrawn=self._forget_unit,
            on_replica_returned=self._forget_sent,
            on_cache_voided=self._forget_blocks,
        )
        self.metrics = Metrics(version("warmroute"), config.paths, lambda name: self.fleet.base_model(name) is not None)
        self.announced = AnnouncedBlocks()
        self.vouching = Vouching(log_trust_change)
        lag_s = config.placement.event_lag_s
        self.proving = Proving(self.index, self.announced, self.vouching, lag_s, self.metrics.prediction_judged)
        self.placer = Placer(
            self.fleet,
            self.index,
            self.expected,
            self.approximate,
            config.placement,
            random.Random(),
            time.time,
            self.proving,
            trace=_trace_of(config),
            on_shadow=self.metrics.shadow_compared,
            hot=self.hot,
        )
        self.metrics.register(FleetSeries(self.fleet, self.index, clock, self.vouching))

    def configure(self, config: RouterConfig) -> None:
        """Work by another configuration from now on."""
        self.fleet.configure(**_fleet_settings(config))
        self.placer.configure(config.placement, _trace_of(config))
        self.proving.event_lag_s = config.placement.event_lag_s
        self.metrics.allow_paths(config.paths)
        if not config.placement.warming.is_on:
            self.hot.clear()

    def warmer(self, config: WarmingConfig, engines: AsksEngines, clock: Callable[[], float]) -> Warmer:
        """Return what warms replicas of this fleet."""
        return Warmer(config, self.fleet, self.index, self.placer, self.hot, engines, self.metrics, clock)

    def _forget_unit(self, unit: Unit) -> None:
        self.announced.interrupted(unit.slot)
        self.expected.forget(unit.slot)
        self.vouching.forget(unit)
        self.index.set_strides(unit.slot, ())
        self.index.set_tails(unit.slot, ())
        self._forget_blocks(unit)

    def _forget_sent(self, replica: Replica) -> None:
        """A replica that was down has probably restarted: without events nobody says so, and its cache is empty."""
        for unit in replica.units:
            if unit.trust in (Trust.EXACT, Trust.MAPPED):
                continue
            self._forget_blocks(unit)

    def _forget_blocks(self, unit: Unit) -> None:
        self.index.clear(unit.slot)
        self.approximate.drop(unit.slot)
        self.approximate.forget(memory_slot(unit.slot))


def _fleet_settings(config: RouterConfig) -> dict[str, Any]:
    retry, warming = config.retry, config.placement.warming
    return {
        "prefill_tokens_per_s": config.placement.prefill_tokens_per_s,
        "max_in_flight": config.limits.max_in_flight,
        "eject_after": retry.eject_after,
        "eject_s": retry.eject_s,
        "eject_max_s": retry.eject_max_s,
        "hold_new_s": warming.timeout_s if warming.join else 0.0,
    }


def _trace_of(config: RouterConfig) -> Trace | None:
    return Tracer().trace if config.admin.traces else None
