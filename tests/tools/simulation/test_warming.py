"""Replicas that join a simulated fleet get the hottest beginnings before requests."""

from __future__ import annotations

import random

import pytest

from router.config_placement import PlacementConfig
from router.tools.simulation.engine import EngineShape
from router.tools.simulation.requests import Session, Turn
from router.tools.simulation.run import ENGINES, Change, FleetPlan, Run
from router.tools.simulation.timeline import Timeline
from router.tools.simulation.warmroute import Hearing, OwnPlacement

SHAPE = EngineShape(4_000, 16, prefill_tokens_per_s=8_000)
JOINS_S, SYSTEMS, SYSTEM_BLOCKS = 30.0, 6, 64


def sessions() -> list[Session]:
    """Six long system prompts with questions of their own: three quarters of what two replicas compute."""
    rng, at_s, made = random.Random(3), 0.0, []
    while at_s < 60.0:
        at_s += rng.expovariate(12.0)
        system = rng.randrange(SYSTEMS)
        question = range(10_000 + 100 * len(made), 10_060 + 100 * len(made))
        blocks = (*range(1_000 * system, 1_000 * system + SYSTEM_BLOCKS), *question)
        made.append(Session(at_s, (Turn(16 * len(blocks), 20, blocks),)))
    return made


def run(engine: str, changes: list[Change], routers: int = 1, **warming: object) -> tuple[Run, OwnPlacement]:
    """One run with a replica that joins."""
    timeline = Timeline()
    config = PlacementConfig.model_validate({"ramp_s": 0, "warming": warming})
    rule = OwnPlacement(config, Hearing(), routers, timeline, 0)
    made = Run(FleetPlan(engine, [SHAPE] * 2, changes), timeline, rule)
    made.run(sessions())
    return made, rule


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("routers", [1, 3])
def test_the_new_one_holds_what_is_asked_most_before_its_first_request(engine: str, routers: int) -> None:
    """No request that goes there computes a system prompt; without warming, those that come first do."""
    join = [Change(JOINS_S, 2, joins=True)]
    cold, warm = run(engine, join, routers)[0], run(engine, join, routers, join=True)[0]
    assert len(warm.jobs) == len(cold.jobs) == len(sessions())
    assert all(job.finished_s is not None for job in warm.jobs)
    there = [job for job in warm.jobs if job.replica == 2]
    assert there
    assert min(job.cached_tokens or 0 for job in there) >= 0.8 * 16 * SYSTEM_BLOCKS
    assert any((job.cached_tokens or 0) == 0 for job in cold.jobs if job.replica == 2)


def test_a_replica_that_is_lost_while_it_warms_takes_nothing_along() -> None:
    """Every request is answered, and nothing is on anybody's books."""
    changes = [Change(JOINS_S, 2, joins=True), Change(JOINS_S + 0.05, 2, joins=False)]
    made, rule = run("batched", changes, join=True, concurrency=4)
    assert all(job.finished_s is not None for job in made.jobs)
    for router in rule.routers:
        assert {unit.in_flight.requests for unit in router.fleet.units.values()} == {0}
