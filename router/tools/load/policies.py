"""A local fleet of simulated engines, fresh for each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadtest.driver.driver import Sending
from loadtest.report.runs import Run, ledger_parts
from router.config_placement import POLICIES
from router.tools.load.plan import Traffic, send
from router.tools.local_fleet import EngineOptions, LocalFleet

QUICK = ("mixed",)
FULL = ("mixed", "chat", "documents", "agents", "few-shot", "no-reuse", "llm-d-small")
ENGINE = EngineOptions(num_blocks=1_024, prefill_tokens_per_s=4_000.0, time_scale=2.0)
"""Small and slow enough that the quick traffic fills the fleet's caches, and keeps it busy without hits."""


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """The fleet.

    Attributes:
        policies: To run, in turn.
        replicas: Engines.
        engine: What each is.
    """

    policies: Sequence[str] = tuple(POLICIES)
    replicas: int = 4
    engine: EngineOptions = ENGINE

    def to_dict(self) -> dict[str, object]:
        """Return what makes it what it is."""
        engine = self.engine
        return {
            "replicas": self.replicas,
            "blocks a replica": engine.num_blocks,
            "block size": engine.block_size,
            "prefill tokens per s": engine.prefill_tokens_per_s,
            "decode step s": engine.decode_step_s,
            "time scale": engine.time_scale,
        }


def run_policies(
    plan: LocalPlan, traffics: Sequence[Traffic], sending: Sending, say: Callable[[str], None]
) -> Iterator[Run]:
    """Run every policy on each traffic; what is sent is made anew from its seed each time.

    Raises:
        StartError: A process did not start.
    """
    for traffic in traffics:
        for policy in plan.policies:
            say(f"{traffic.workload}, {policy}: starting")
            options = {"placement": {"policy": policy}, "log": {"level": "warning", "access": False}}
            lanes = traffic.lanes(plan.engine.folder)
            with LocalFleet(plan.engine, plan.replicas, agents=True, router=options) as fleet:
                driver = send(fleet.router.http, sending, traffic.stages, lanes, {})
                fleet.check()
                ledger = ledger_parts(None, fleet.get_json("/admin/ledger"))
            run = Run(
                workload=traffic.workload,
                policy=policy,
                records=driver.measured,
                generator=driver.generator(),
                block_size=plan.engine.block_size,
                stages=traffic.stages,
                replicas=plan.replicas,
                ledger=ledger,
            )
            say(f"{traffic.workload}, {policy}: {len(run.records):,} requests; {run.generator.sentence()}")
            yield run
