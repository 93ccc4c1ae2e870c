"""Sessions keep to their replica, softly or strictly, and what is remembered of them is bounded."""

from __future__ import annotations

from typing import Any

from router.config_placement import AffinityConfig
from router.scheduling.affinity import Affinity
from router.scheduling.candidate import Candidate
from router.scheduling.ring import OwnerRing
from router.scheduling.sessions import Sessions

NAMES = ("a/0", "b/0", "c/0")
RING = OwnerRing(NAMES)


def candidates(**costs: float) -> list[Candidate]:
    """One for each unit, with its cost."""
    made = [Candidate(f"{name}/0", name, 1_000) for name in costs]
    for item in made:
        item.cost = costs[item.replica_id]
    return made


def affinity(**config: Any) -> Affinity:
    """By header, unless told otherwise."""
    return Affinity(AffinityConfig(**{"by": "header", "name": "x-session", **config}))


def place(of: Affinity, session: int, now_s: float, removed: dict[str, str] | None = None, **costs: float) -> str:
    """Where a request of a session goes."""
    offered = candidates(**costs)
    picked = min(offered, key=lambda item: item.cost)
    winner = of.choose(session, offered, picked, RING, now_s)
    of.went(session, winner, removed or {}, now_s)
    return winner.replica_id


def test_a_soft_session_stays_until_another_is_cheaper_by_its_slack() -> None:
    """And then it moves, and stays there."""
    soft = affinity(slack_tokens=500)
    assert place(soft, 1, 0.0, a=10, b=20, c=30) == "a"
    assert place(soft, 1, 1.0, a=500, b=0, c=30) == "a"
    assert place(soft, 1, 2.0, a=501, b=0, c=30) == "b"
    assert place(soft, 1, 3.0, a=0, b=400, c=30) == "b"


def test_a_lease_ends_without_requests_and_is_renewed_by_each() -> None:
    """Counted from the last one."""
    soft = affinity(lease_s=10)
    assert place(soft, 1, 0.0, a=0, b=20, c=30) == "a"
    assert place(soft, 1, 9.0, a=100, b=20, c=30) == "a"
    assert place(soft, 1, 18.0, a=100, b=20, c=30) == "a"
    assert place(soft, 1, 28.0, a=100, b=20, c=30) == "b"


def test_a_hard_session_stays_whatever_it_costs() -> None:
    """While its replica may take requests; one that is new goes to its owner, at every router alike."""
    hard, other_router = affinity(mode="hard"), affinity(mode="hard")
    for session in range(50):
        owner = next(iter(RING.preference(session))).partition("/")[0]
        costs = {name: 1e6 if name == owner else 0.0 for name in "abc"}
        assert place(hard, session, 0.0, **costs) == place(other_router, session, 0.0, **costs) == owner


def test_a_hard_session_moves_when_its_replica_leaves_and_stays_where_it_went() -> None:
    """Its cache is there by then."""
    hard = affinity(mode="hard")
    first = place(hard, 7, 0.0, a=0, b=0, c=0)
    left = {name: 0.0 for name in "abc" if name != first}
    second = place(hard, 7, 1.0, {first: "draining"}, **left)
    assert second != first
    assert place(hard, 7, 2.0, a=0, b=0, c=0) == second


def test_a_request_that_its_full_replica_has_no_room_for_does_not_take_the_session_along() -> None:
    """It goes elsewhere at once: waiting would hold up everybody behind it."""
    hard = affinity(mode="hard")
    first = place(hard, 7, 0.0, a=0, b=0, c=0)
    left = {name: 0.0 for name in "abc" if name != first}
    assert place(hard, 7, 1.0, {first: "full"}, **left) != first
    assert place(hard, 7, 2.0, a=0, b=0, c=0) == first


def test_what_is_remembered_is_bounded_and_ends() -> None:
    """However many sessions clients make up."""
    sessions = Sessions(10.0, 100)
    for number in range(1_000):
        sessions.renew(number, "a/0", 0.0)
    assert len(sessions) == 100
    assert sessions.unit_of(0, 0.0) is None
    assert sessions.unit_of(999, 0.0) == "a/0"
    for number in range(200):
        sessions.renew(5_000, "a/0", 20.0 + number / 1000)
    assert len(sessions) == 1


def test_other_bounds_hold_for_the_sessions_that_are_there() -> None:
    """A reload loses none but those that are too many."""
    before = affinity(max_sessions=100)
    for number in range(100):
        place(before, number, 0.0, a=0, b=1, c=1)
    after = Affinity(AffinityConfig(by="cookie", name="sid", max_sessions=10), before)
    place(after, 99, 1.0, a=5, b=0, c=0)
    assert len(after.sessions) == 10
    assert after.sessions.unit_of(99, 1.0) == "a/0"
