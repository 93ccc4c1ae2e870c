"""What other routers have in flight counts while they tell it, and no longer."""

from __future__ import annotations

import pytest

from router.fleet import peers
from router.fleet.facts import EngineLoad, ReplicaFacts, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.peers import PeerLoads
from router.kv.router_load import Row


@pytest.fixture
def fleet() -> Fleet:
    """Two replicas."""
    made = Fleet()
    for name in ("r0", "r1"):
        join(made, name)
    return made


def join(fleet: Fleet, name: str, port: int = 8000) -> None:
    """A replica is announced."""
    unit = UnitFacts(f"{name}/0", 0, None, Trust.APPROXIMATE)
    fleet.announce(ReplicaFacts(name, f"http://{name}:{port}", "redis", (), (unit,)), 0.0)


def told(fleet: Fleet, name: str) -> tuple[int, float]:
    """What others have at a replica."""
    unit = fleet.units[f"{name}/0"]
    return unit.peer_requests, unit.peer_tokens


def test_routers_add_up_and_the_last_word_of_each_counts(fleet: Fleet) -> None:
    """Units that a router names no more have nothing of it."""
    loads = PeerLoads(fleet)
    loads.hear("a", 0, [Row("r0/0", 2, 100.0), Row("r1/0", 1, 50.0)], 0.0)
    loads.hear("b", 0, [Row("r0/0", 1, 10.0)], 0.0)
    assert (told(fleet, "r0"), told(fleet, "r1")) == ((3, 110.0), (1, 50.0))
    loads.hear("a", 0, [Row("r0/0", 1, 64.0)], 0.1)
    assert (told(fleet, "r0"), told(fleet, "r1")) == ((2, 74.0), (0, 0.0))
    loads.hear("a", 1, [Row("r1/0", 5, 5.0)], 0.2)
    assert (told(fleet, "r0"), told(fleet, "r1")) == ((2, 74.0), (5, 5.0))
    assert loads.routers == 2


def test_a_router_that_dies_is_gone_after_three_seconds(fleet: Fleet) -> None:
    """And not before: it may be slow."""
    loads = PeerLoads(fleet)
    loads.hear("a", 0, [Row("r0/0", 2, 100.0)], 10.0)
    loads.settle(12.9)
    assert (told(fleet, "r0"), loads.routers) == ((2, 100.0), 1)
    loads.settle(13.0)
    assert (told(fleet, "r0"), loads.routers) == ((0, 0.0), 0)


def test_a_lane_that_is_not_told_again_ends_though_its_router_lives(fleet: Fleet) -> None:
    """Redis may have lost the entry that took it back."""
    loads = PeerLoads(fleet)
    loads.hear("a", 0, [Row("r0/0", 2, 100.0)], 0.0)
    for second in range(4):
        loads.hear("a", 1, [], float(second))
        loads.settle(float(second))
    assert (told(fleet, "r0"), loads.routers) == ((0, 0.0), 1)


def test_a_replica_that_joins_or_comes_back_gets_what_is_told_of_it(fleet: Fleet) -> None:
    """Whatever came first; and one that left under the same name takes nothing along."""
    loads = PeerLoads(fleet)
    loads.hear("a", 0, [Row("r9/0", 2, 100.0), Row("r0/0", 1, 5.0)], 0.0)
    join(fleet, "r9")
    fleet.withdraw("r0")
    loads.settle(0.1)
    assert told(fleet, "r9") == (2, 100.0)
    join(fleet, "r0", port=9000)
    loads.settle(0.2)
    assert told(fleet, "r0") == (1, 5.0)
    loads.hear("a", 0, [], 0.3)
    assert (told(fleet, "r0"), told(fleet, "r9")) == ((0, 0.0), (0, 0.0))


def test_what_strangers_make_up_is_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of routers and figures; those that are known go on being heard."""
    monkeypatch.setattr(peers, "MAX_ROUTERS", 10)
    monkeypatch.setattr(peers, "MAX_ROWS", 100)
    loads = PeerLoads(fleet)
    for number in range(50):
        loads.hear(f"made-up-{number}", 0, [Row(f"u{number}-{unit}/0", 1, 1.0) for unit in range(50)], 0.0)
    assert loads.routers == 10
    assert loads._rows == len(loads._totals) == 100
    loads.hear("made-up-0", 0, [Row("r0/0", 1, 1.0)], 0.1)
    assert told(fleet, "r0") == (1, 1.0)
    loads.settle(10.0)
    assert (loads.routers, loads._rows, loads._totals) == (0, 0, {})


def test_what_an_engine_counts_beyond_known_routers_is_foreign(fleet: Fleet) -> None:
    """It stays what it is while the routers' own come and go, until the engine says otherwise."""
    loads, unit = PeerLoads(fleet), fleet.units["r0/0"]
    reservation = unit.in_flight.reserve(100, 0.0)
    loads.hear("a", 0, [Row("r0/0", 2, 100.0)], 0.0)
    fleet.report_load("r0/0", EngineLoad(running=6, waiting=2, kv_usage=0.5, at_s=0.0))
    assert unit.foreign_requests == 5
    unit.in_flight.release(reservation, 0.1)
    assert unit.foreign_requests == 5
    fleet.report_load("r0/0", EngineLoad(running=2, waiting=0, kv_usage=0.5, at_s=1.0))
    assert unit.foreign_requests == 0
    fleet.report_load("r0/0", EngineLoad(running=9, waiting=0, kv_usage=0.5, at_s=1.0))
    fleet.report_load("r0/0", None)
    assert unit.foreign_requests == 0


def test_what_is_older_elsewhere_is_computed_first(fleet: Fleet) -> None:
    """While another router's prompt came first, nothing melts here; it goes on when that is computed, or not told of
    any more."""
    loads, in_flight = PeerLoads(fleet), fleet.units["r0/0"].in_flight
    in_flight.reserve(8_000, 10.0)
    loads.hear("a", 0, [Row("r0/0", 1, 4_000.0, 0.5)], 10.1)
    assert in_flight.backlog_tokens(10.5) == 8_000
    loads.hear("a", 0, [Row("r0/0", 1, 0.0, -1.0, 4_000.0)], 10.6)
    assert in_flight.backlog_tokens(10.5 + 0.5) == pytest.approx(8_000 - 0.5 * 8_000)
    loads.hear("a", 0, [Row("r0/0", 1, 900.0, 0.1)], 11.0)
    assert in_flight.backlog_tokens(11.1) == pytest.approx(8_000 - 0.6 * 8_000)
    loads.hear("b", 0, [Row("r0/0", 1, 900.0, 9.0)], 11.1)
    before = in_flight.backlog_tokens(11.1)
    assert in_flight.backlog_tokens(11.5) >= before
    loads.settle(14.2)
    assert in_flight.peer_head_s == float("inf")


def test_others_tokens_melt_between_tellings(fleet: Fleet) -> None:
    """At the unit's speed, of the router alone that waits longest there, to 5%; not behind a prompt of ours."""
    loads, in_flight = PeerLoads(fleet), fleet.units["r0/0"].in_flight
    in_flight.prefill_tokens_per_s = 1_000.0
    loads.hear("a", 0, [Row("r0/0", 1, 4_000.0, 0.5)], 10.0)
    loads.hear("b", 0, [Row("r0/0", 1, 2_000.0, 0.1)], 10.0)
    for now_s, left in ((10.0, 6_000.0), (11.0, 5_000.0), (13.5, 2_500.0), (60.0, 2_200.0)):
        loads.melt(now_s)
        assert told(fleet, "r0") == (2, pytest.approx(left))
    loads.hear("a", 0, [], 60.0)
    loads.melt(60.5)
    assert told(fleet, "r0") == (1, pytest.approx(100.0))  # b's own have waited since: told 50 s ago
    ours = in_flight.reserve(500, 5.0)
    loads.melt(61.0)
    assert told(fleet, "r0") == (1, 2_000.0)
    in_flight.release(ours, 61.0)
    loads.melt(61.0)
    assert told(fleet, "r0") == (1, pytest.approx(100.0))


def test_speed_is_learned_from_all_that_a_unit_computes(fleet: Fleet) -> None:
    """Two routers send to one unit that computes 10,000 tokens a second: each sees half of it by itself."""
    loads, in_flight = PeerLoads(fleet), fleet.units["r0/0"].in_flight
    in_flight.prefill_tokens_per_s = 5_000.0
    now_s, computed = 0.0, 0.0
    ours = in_flight.reserve(1_000, now_s)
    loads.hear("a", 0, [Row("r0/0", 2, 1_000.0, 0.0, computed)], now_s)
    for _ in range(200):
        now_s, computed = now_s + 0.1, computed + 1_000.0
        loads.hear("a", 0, [Row("r0/0", 2, 1_000.0, 0.0, computed)], now_s)
        now_s += 0.1
        following = in_flight.reserve(1_000, now_s)
        in_flight.first_token(ours, now_s)
        in_flight.release(ours, now_s)
        ours = following
    assert in_flight.prefill_tokens_per_s == pytest.approx(10_000, rel=0.1)
