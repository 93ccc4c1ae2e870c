"""Routers that tell each other what is in flight place nearly as one; without that they do not."""

from __future__ import annotations

import random

from router.config_placement import PlacementConfig
from router.tools.simulation.engine import EngineShape
from router.tools.simulation.requests import Session, Turn
from router.tools.simulation.run import FleetPlan, Run
from router.tools.simulation.timeline import Timeline
from router.tools.simulation.warmroute import Hearing, OwnPlacement

SHAPE = EngineShape(2_000, 64, prefill_tokens_per_s=8_000)
REQUESTS, TOKENS = 600, 4_096


def cold_sessions() -> list[Session]:
    """Prompts that share nothing, as fast as eight replicas can compute them: where each goes is for load to decide."""
    rng, at_s, made = random.Random(3), 0.0, []
    for number in range(REQUESTS):
        at_s += rng.expovariate(0.85 * 8 * SHAPE.prefill_tokens_per_s / TOKENS)
        blocks = tuple(range(1_000 * number, 1_000 * number + TOKENS // SHAPE.block_tokens))
        made.append(Session(at_s, (Turn(TOKENS, 4, blocks),)))
    return made


def p90_s(routers: int, *, shared: bool) -> float:
    """The 90th percentile of TTFT, in seconds. Engines' own counts come each half second, as ever."""
    timeline = Timeline()
    rule = OwnPlacement(PlacementConfig(), Hearing(shared_load=shared), routers, timeline, 0)
    run = Run(FleetPlan("serial", [SHAPE] * 8), timeline, rule)
    run.run(cold_sessions())
    return sorted(job.first_token_s - job.arrived_s for job in run.jobs)[int(0.9 * REQUESTS)]  # type: ignore[operator]


def test_eight_routers_that_share_load_keep_queues_short() -> None:
    """What comes at one moment they can't see of each other, so it is more than one router's; without sharing, each
    places behind what the others have placed."""
    one, shared, alone = p90_s(1, shared=True), p90_s(8, shared=True), p90_s(8, shared=False)
    assert shared < 0.85 * alone
    assert shared < 1.6 * one


def test_nothing_is_left_on_anyone_s_books() -> None:
    """What was told is taken back with the last request."""
    timeline = Timeline()
    rule = OwnPlacement(PlacementConfig(), Hearing(), 3, timeline, 0)
    Run(FleetPlan("batched", [SHAPE] * 4), timeline, rule).run(cold_sessions()[:60])
    for router in rule.routers:
        units = router.fleet.units.values()
        assert [(unit.peer_requests, unit.peer_tokens) for unit in units] == [(0, 0.0)] * 4
