"""One policy of a plan over the same requests as all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from router.tools.simulation.figures import Row, row_of
from router.tools.simulation.peers import PEERS, KnowsLoad
from router.tools.simulation.plan import Plan
from router.tools.simulation.requests import Session
from router.tools.simulation.rule import Rule
from router.tools.simulation.run import FleetPlan, Run
from router.tools.simulation.timeline import Timeline
from router.tools.simulation.warmroute import OwnPlacement


def simulate(
    plan: Plan,
    policy: str,
    sessions: Sequence[Session],
    on_job: Callable[[], None] | None = None,
) -> Row:
    """Run one policy.

    Args:
        policy: A name that the plan knows.
        on_job: Called with each request that arrives.
    """
    timeline = Timeline()
    run = Run(FleetPlan(plan.engine, plan.shapes, plan.changes), timeline, _rule(plan, policy, timeline), on_job)
    run.run(sessions)
    return row_of(policy, run, plan.shapes[0].block_tokens, plan.objective)


def _rule(plan: Plan, policy: str, timeline: Timeline) -> Rule:
    peer = PEERS.get(policy)
    if peer is not None:
        return KnowsLoad(peer)
    config = plan.placement.model_copy(update={"policy": policy})
    hearing = replace(plan.hearing, exact=policy in plan.exact)
    return OwnPlacement(config, hearing, plan.routers, timeline, plan.seed)
