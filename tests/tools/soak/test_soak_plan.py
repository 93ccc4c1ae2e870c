"""The churn's order: a pure function of its seed, in which each kind comes and two survive."""

from __future__ import annotations

from itertools import islice

import pytest

from router.tools.soak.plan import REPLICAS, ROUTERS, Event, Kind, plan

CYCLE = len(Kind)


def first(seed: int, events: int) -> list[Event]:
    return list(islice(plan(seed), events))


def test_a_seed_gives_the_same_events_each_time() -> None:
    """So a failing run can be replayed."""
    assert first(7, 60) == first(7, 60)
    assert first(7, 60) != first(8, 60)


@pytest.mark.parametrize("seed", range(20))
def test_each_cycle_has_every_kind_once(seed: int) -> None:
    """And a replica leaves after one has joined."""
    events = first(seed, 3 * CYCLE)
    for begin in range(0, len(events), CYCLE):
        kinds = [event.kind for event in events[begin : begin + CYCLE]]
        assert set(kinds) == set(Kind)
        assert kinds.index(Kind.REPLICA_JOINED) < kinds.index(Kind.REPLICA_LEFT)


def test_router_0_and_replica_0_are_never_struck() -> None:
    """They live through the whole run, so that a leak shows; the others all have their turn."""
    events = first(1, 60 * CYCLE)
    routers = {each.number for each in events if each.kind in (Kind.ROUTER_RESTARTED, Kind.ROUTER_KILLED)}
    struck = (Kind.REPLICA_DRAINED, Kind.REPLICA_DIED, Kind.ENGINE_RESTARTED, Kind.AGENT_RESTARTED)
    assert routers == set(range(1, ROUTERS))
    assert {each.number for each in events if each.kind in struck} == set(range(1, REPLICAS))
