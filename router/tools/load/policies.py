"""A local fleet of simulated engines, fresh for each policy, and for each other router in our place."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from loadtest.driver.holding import Sending
from loadtest.report.runs import Run, ledger_parts
from loadtest.workloads.callers import Callers
from loadtest.workloads.traffic import Traffic
from router.config_placement import POLICIES, PlacementConfig
from router.tools.load.peers import PEERS, PeerFleet
from router.tools.load.sending import Happening, send
from router.tools.local_fleet import EngineOptions, LocalFleet

QUICK = ("mixed",)
FULL = ("mixed", "chat", "documents", "agents", "few-shot", "system-prompts", "no-reuse", "llm-d-small")
ENGINE = EngineOptions(num_blocks=1_024, prefill_tokens_per_s=4_000.0, time_scale=2.0)
"""Small and slow enough that the quick traffic fills the fleet's caches, and keeps it busy without hits."""


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """The fleet.

    Attributes:
        policies: To run, in turn.
        peers: Other routers to run after them.
        replicas: Engines.
        engine: What each is.
        tenants: Keys that share the traffic; 0: none.
        adapters: LoRA adapters that each engine has.
        kills: (replica, virtual second): engines that are killed.
        shrink: How many tokens one token of the engine stands for.
    """

    policies: Sequence[str] = tuple(POLICIES)
    peers: Sequence[str] = ()
    replicas: int = 4
    engine: EngineOptions = ENGINE
    tenants: int = 0
    adapters: Sequence[str] = ()
    kills: Sequence[tuple[int, float]] = ()
    shrink: int = 1

    def to_dict(self) -> dict[str, object]:
        """Return what makes it what it is."""
        engine = self.engine
        return {
            "replicas": self.replicas,
            "blocks a replica": engine.num_blocks,
            "block size": engine.block_size,
            "prefill tokens per s": engine.prefill_tokens_per_s,
            "tokens a step": engine.max_num_batched_tokens,
            "decode step s": engine.decode_step_s,
            "time scale": engine.time_scale,
            "tenants": self.tenants,
            "adapters": list(self.adapters),
            "killed": [f"r{number} at {at_s:g} s" for number, at_s in self.kills],
        }

    @property
    def placement(self) -> dict[str, Any]:
        """What the router must be told, as it knows neither that time runs faster nor that tokens are larger: its
        default figures in the engines' own seconds and tokens."""
        defaults = PlacementConfig.model_validate({})
        return {
            "tie_tokens": defaults.tie_tokens / self.shrink,
            "weights": {
                "running_tokens": defaults.weights.running_tokens / self.shrink,
                "price_per_backlog_s": defaults.weights.price_per_backlog_s * self.engine.time_scale,
            },
        }

    def systems(self, keys: Sequence[str]) -> dict[str, Callable[[], LocalFleet]]:
        """Return what is run, by its name in the report."""
        engine = replace(
            self.engine, extra=tuple(part for name in self.adapters for part in ("--lora", f"{name}=/{name}"))
        )
        options: dict[str, Any] = {"log": {"level": "warning", "access": False}}
        if keys:
            hashes = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
            options["tenants"] = [
                {"name": f"tenant-{number}", "keys": [each], "tells_cached": True} for number, each in enumerate(hashes)
            ]
            options["isolation"] = {"secret": secrets.token_urlsafe(32)}
            options["admin"] = {"listen": "127.0.0.1:0"}
        ours = {
            policy: partial(
                LocalFleet, engine, self.replicas, True, {"placement": {"policy": policy, **self.placement}, **options}
            )
            for policy in self.policies
        }
        return {**ours, **{name: partial(PeerFleet, PEERS[name], engine, self.replicas) for name in self.peers}}


def shrunk(engine: EngineOptions, shrink: int) -> EngineOptions:
    """Return an engine for which a token stands for `shrink` (1 or more): prompts and answers are so much shorter,
    and each of their tokens takes so much longer. It has 8,000 tokens/s, 25 ms a step and 1,024,000 tokens of cache,
    as the replicas of docs/placement-rules.md."""
    return replace(
        engine,
        num_blocks=1 + 1_024_000 // shrink // engine.block_size,
        prefill_tokens_per_s=8_000 / shrink,
        decode_step_s=0.025 * shrink,
        max_num_batched_tokens=max(64, 8_192 // shrink),
    )


def run_policies(
    plan: LocalPlan, traffics: Sequence[Traffic], sending: Sending, say: Callable[[str], None]
) -> Iterator[Run]:
    """Run every policy on each traffic; what is sent is made anew from its seed each time.

    Raises:
        StartError: A process did not start.
    """
    keys = [secrets.token_urlsafe(32) for _ in range(plan.tenants)]
    sending = replace(sending, callers=Callers((plan.engine.model, *plan.adapters), keys))
    for traffic in traffics:
        for name, make in plan.systems(keys).items():
            say(f"{traffic.workload}, {name}: starting")
            lanes = traffic.lanes(plan.engine.folder)
            with make() as fleet:
                kills = [Happening(at_s, f"r{one} was killed", partial(fleet.kill, one)) for one, at_s in plan.kills]
                sent = send(fleet.router.http, sending, traffic.stages, lanes, fleet.metrics_pages(), kills)
                fleet.check()
                ledger = ledger_parts(None, fleet.get_json("/admin/ledger"))
            run = Run(
                workload=traffic.workload,
                policy=name,
                records=sent.driver.measured,
                generator=sent.driver.generator(),
                block_size=plan.engine.block_size,
                stages=traffic.stages,
                replicas=plan.replicas,
                ledger=ledger,
                events=[(at_s, f"{name}: {what}") for at_s, what in sent.events],
                scrapes=sent.scrapes,
            )
            say(f"{traffic.workload}, {name}: {len(run.records):,} requests; {run.generator.sentence()}")
            yield run
