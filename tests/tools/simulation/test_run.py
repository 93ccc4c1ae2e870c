"""Runs: sessions go on, lost replicas' requests are placed again, routers hear of who comes and goes."""

from __future__ import annotations

import pytest

from router.config_placement import PlacementConfig
from router.tools.simulation.engine import EngineShape
from router.tools.simulation.peers import PEERS, KnowsLoad
from router.tools.simulation.requests import Session, Turn
from router.tools.simulation.run import ENGINES, Change, FleetPlan, Run
from router.tools.simulation.timeline import ASK, BEGIN, Timeline
from router.tools.simulation.warmroute import Hearing, OwnPlacement

SHAPE = EngineShape(100, 16)


def _rules(timeline: Timeline):
    yield KnowsLoad(PEERS["llm-d-approximate"])
    for hearing in (Hearing(), Hearing(exact=True), Hearing(events=False)):
        yield OwnPlacement(PlacementConfig(), hearing, 2, timeline, 0)


def _sessions() -> list[Session]:
    return [
        Session(
            start_s=number * 0.01,
            turns=tuple(
                Turn(16 * (2 + turn), 20, tuple(range(100 * number, 100 * number + 2 + turn)), think_s=0.5 * (turn > 0))
                for turn in range(3)
            ),
        )
        for number in range(20)
    ]


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("rule", range(4))
def test_all_turns_are_answered_though_replicas_are_lost(engine, rule) -> None:
    """One of two replicas is lost, then both, then one comes back: every turn ends once, each after the one before."""
    timeline = Timeline()
    changes = [Change(0.2, 0, joins=False), Change(0.4, 1, joins=False), Change(0.9, 2, joins=True)]
    run = Run(FleetPlan(engine, [SHAPE, SHAPE], changes), timeline, list(_rules(timeline))[rule])
    run.run(_sessions())
    assert len(run.jobs) == 60
    assert all(job.finished_s is not None for job in run.jobs)
    assert max(job.tries for job in run.jobs) > 1
    ends = {(job.session.start_s, job.index): job for job in run.jobs}
    for (start_s, index), job in ends.items():
        if index:
            assert job.arrived_s == pytest.approx(ends[start_s, index - 1].finished_s + 0.5)


def test_a_router_without_requests_in_flight_has_none_on_its_books() -> None:
    """After the last answer every ledger is empty, the lost replicas' too."""
    timeline = Timeline()
    rule = OwnPlacement(PlacementConfig(), Hearing(), 2, timeline, 0)
    Run(FleetPlan("batched", [SHAPE, SHAPE], [Change(0.3, 1, joins=False)]), timeline, rule).run(_sessions())
    for router in rule.routers:
        assert [unit.in_flight.requests for unit in router.fleet.units.values()] == [0]


def test_ends_come_before_questions_and_these_before_new_work() -> None:
    """Of what happens at one moment."""
    timeline, seen = Timeline(), []
    timeline.at(1.0, seen.append, "begin", who=BEGIN)
    timeline.at(1.0, seen.append, "ask", who=ASK)
    timeline.at(1.0, seen.append, "end")
    timeline.at(0.5, seen.append, "earlier")
    timeline.run()
    assert seen == ["earlier", "end", "ask", "begin"]
