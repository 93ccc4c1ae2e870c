"""The waiting room: priority, turns by tokens and weight, and a bound that turns away whoever fills it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import QueueFullError, TenantQueueFullError, WarmrouteError
from router.scheduling.waiting_room import Ticket, WaitingRoom


def ticket(name: str, tenant: str = "", since_s: float = 0.0, model: str | None = "m", **more: Any) -> Ticket[str]:
    return Ticket(name, model, since_s, tenant=tenant, **more)


def served(room: WaitingRoom[str], model: str | None = "m") -> list[str]:
    """All of a line, in the order of turns."""
    order = []
    while (turn := room.next(model)) is not None:
        order.append(turn.owner)
        room.served(turn)
    return order


def test_first_come_first_served() -> None:
    """Without tenants and priorities."""
    room: WaitingRoom[str] = WaitingRoom(10)
    for name in "abc":
        room.enter(ticket(name))
    assert (len(room), served(room), len(room), room.models()) == (3, ["a", "b", "c"], 0, [])


def test_lower_priority_numbers_go_first() -> None:
    """As vLLM has it, whoever asked."""
    room: WaitingRoom[str] = WaitingRoom(10)
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 0)):
        room.enter(ticket(name, tenant=name, priority=priority))
    assert served(room) == ["c", "a", "d", "b"]


def test_tenants_take_turns() -> None:
    """However many requests one of them has waiting."""
    room: WaitingRoom[str] = WaitingRoom(100)
    for number in range(6):
        room.enter(ticket(f"a{number}", "a"))
    for number in range(2):
        room.enter(ticket(f"b{number}", "b"))
    assert served(room) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4", "a5"]


def test_turns_are_by_tokens_and_not_by_requests() -> None:
    """One of 3,000 tokens is worth three of 1,000."""
    room: WaitingRoom[str] = WaitingRoom(100)
    for number in range(2):
        room.enter(ticket(f"a{number}", "a", cost_tokens=3_000))
    for number in range(6):
        room.enter(ticket(f"b{number}", "b", cost_tokens=1_000))
    assert served(room) == ["a0", "b0", "b1", "b2", "a1", "b3", "b4", "b5"]


def test_a_weight_of_two_gets_twice_as_much() -> None:
    """Over a long line of equal requests."""
    room: WaitingRoom[str] = WaitingRoom(1_000)
    for number in range(300):
        room.enter(ticket(f"a{number}", "a", weight=2, cost_tokens=100))
        room.enter(ticket(f"b{number}", "b", weight=1, cost_tokens=100))
    first = "".join(name[0] for name in served(room)[:300])
    assert first.count("a") == 200


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5_000)), min_size=30, max_size=200), st.randoms())
def test_no_tenant_falls_behind_by_more_than_two_requests(asked: list[tuple[str, int]], rng: random.Random) -> None:
    """While all have something waiting, what they were served differs by less than the largest requests."""
    room: WaitingRoom[str] = WaitingRoom(1_000)
    for tenant, cost in asked:
        room.enter(ticket(tenant, tenant, cost_tokens=cost))
    given_tokens = dict.fromkeys("abc", 0)
    while len({item.tenant for item in room}) == 3:
        turn = room.next("m")
        assert turn is not None
        given_tokens[turn.tenant] += turn.cost_tokens
        room.served(turn)
        assert max(given_tokens.values()) - min(given_tokens.values()) <= 2 * 5_000


def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    """It takes turns from now on."""
    room: WaitingRoom[str] = WaitingRoom(100)
    for number in range(10):
        room.enter(ticket(f"a{number}", "a", cost_tokens=1_000))
    for _ in range(5):
        turn = room.next("m")
        assert turn is not None
        room.served(turn)
    for number in range(3):
        room.enter(ticket(f"b{number}", "b", cost_tokens=1_000))
    assert served(room) == ["b0", "a5", "b1", "a6", "b2", "a7", "a8", "a9"]


def test_lines_of_models_are_apart() -> None:
    """Room at one model's replicas is of no use to another's requests."""
    room: WaitingRoom[str] = WaitingRoom(10)
    room.enter(ticket("a", model="x"))
    room.enter(ticket("b", model="y"))
    assert (room.has_line("x"), room.has_line("z")) == (True, False)
    assert served(room, "y") == ["b"]
    assert room.models() == ["x"]


def test_whoever_leaves_is_gone_at_once() -> None:
    """From the middle of a line, once or twice."""
    room: WaitingRoom[str] = WaitingRoom(10)
    tickets = [ticket(name) for name in "abc"]
    for item in tickets:
        room.enter(item)
    room.leave(tickets[1])
    room.leave(tickets[1])
    assert (len(room), served(room)) == (2, ["a", "c"])
    room.leave(tickets[0])
    room.served(tickets[0])
    assert len(room) == 0


def test_a_full_room_turns_the_next_one_away() -> None:
    """503, with the time to come again."""
    room: WaitingRoom[str] = WaitingRoom(2)
    room.enter(ticket("a"))
    room.enter(ticket("b"))
    with pytest.raises(QueueFullError) as caught:
        room.enter(ticket("c"))
    assert (caught.value.http_status, caught.value.retry_after_s) == (503, 1)
    assert served(room) == ["a", "b"]


def test_a_room_without_a_place_turns_everyone_away() -> None:
    """`limits.queue_requests: 0`."""
    with pytest.raises(QueueFullError):
        WaitingRoom[str](0).enter(ticket("a"))


def test_a_tenant_that_fills_the_room_gives_way_to_others() -> None:
    """Its latest requests lose their places, one for each that comes; its own next is turned away."""
    room: WaitingRoom[str] = WaitingRoom(4)
    for number in range(4):
        room.enter(ticket(f"a{number}", "a", since_s=number))
    evicted = [room.enter(ticket(name, "b", since_s=9)) for name in ("b0", "b1")]
    assert [item.owner for item in evicted if item] == ["a3", "a2"]
    for tenant in ("a", "b"):
        with pytest.raises(TenantQueueFullError) as caught:
            room.enter(ticket("x", tenant))
        assert caught.value.http_status == 429
    assert served(room) == ["a0", "b0", "a1", "b1"]


def test_weights_count_for_places_too() -> None:
    """A tenant of weight 3 may hold three quarters of the room."""
    room: WaitingRoom[str] = WaitingRoom(4)
    for number in range(3):
        room.enter(ticket(f"a{number}", "a", weight=3))
    room.enter(ticket("b0", "b"))
    with pytest.raises(TenantQueueFullError):
        room.enter(ticket("b1", "b"))


def test_a_more_urgent_request_takes_the_place_of_its_tenant_s_least_urgent() -> None:
    """Also where nobody else waits."""
    room: WaitingRoom[str] = WaitingRoom(2)
    room.enter(ticket("a", priority=5))
    room.enter(ticket("b", priority=1))
    evicted = room.enter(ticket("c", priority=0))
    assert evicted is not None
    assert (evicted.owner, evicted.waits) == ("a", False)
    with pytest.raises(QueueFullError):
        room.enter(ticket("d", priority=1))
    assert served(room) == ["c", "b"]


@given(st.lists(st.tuples(st.sampled_from("ELSN"), st.sampled_from("abc"), st.integers(-1, 1)), max_size=80))
def test_the_room_agrees_with_a_plain_list(steps: list[tuple[str, str, int]]) -> None:
    """Whatever is done in whatever order: who waits, how many, and never more than the limit."""
    room: WaitingRoom[str] = WaitingRoom(5)
    waiting: list[Ticket[str]] = []
    for number, (step, tenant, priority) in enumerate(steps):
        if step == "E":
            item = ticket(str(number), tenant, since_s=number, priority=priority, model=tenant)
            try:
                evicted = room.enter(item)
            except WarmrouteError:
                assert len(waiting) == 5
                continue
            if evicted is not None:
                waiting.remove(evicted)
            waiting.append(item)
        elif step == "L" and waiting:
            room.leave(waiting.pop(0))
        elif step == "S" and waiting:
            model = waiting[0].model
            turn = room.next(model)
            assert turn is not None
            assert turn.priority == min(item.priority for item in waiting if item.model == model)
            room.served(turn)
            waiting.remove(turn)
        assert len(room) == len(waiting) <= 5
        assert set(room) == set(waiting)
        assert set(room.models()) == {item.model for item in waiting}
