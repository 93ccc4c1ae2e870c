"""Requests that wait for a replica with room, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest


class Held:
    """An engine's behaviour that answers when it is told to."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.waiting: list[tuple[str, asyncio.Event]] = []
        self.begun: list[str] = []

    async def __call__(self, asked: Any, writer: Any) -> None:
        name = json.loads(asked.body)["messages"][0]["content"].strip()
        go = asyncio.Event()
        self.begun.append(name)
        self.waiting.append((name, go))
        await go.wait()
        writer.write(self.wire.ok())

    def answer_next(self) -> None:
        self.waiting.pop(0)[1].set()


async def asking(item: Any, wire: Any, name: str, *headers: str, pad: int = 0, **fields: Any) -> Any:
    """A client that has sent a request and reads nothing yet."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": name + " " * pad}], **fields}
    client = await item.client()
    client.send(wire.post(json.dumps(body).encode(), headers=headers))
    return client


async def test_a_request_waits_until_a_replica_has_room(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """One at a time: the others wait in order, and how long is in the decision and the metrics."""
    held = Held(wire)
    item = await harness(await engine(held), limits={"max_in_flight": 1})
    clients = []
    for number in range(3):
        clients.append(await asking(item, wire, f"q{number}"))
        await eventually(lambda number=number: (len(held.begun), item.notes.waiting) == (1, number))
    for number, client in enumerate(clients):
        await eventually(lambda number=number: len(held.begun) == number + 1)
        held.answer_next()
        assert (await client.answer()).status == 200
    assert held.begun == ["q0", "q1", "q2"]
    waits = [decision.queued_s for decision in item.notes.decisions]
    assert waits[0] == 0 < min(waits[1:])
    assert item.notes.decisions[2].to_dict()["queued_s"] > 0
    assert len(item.notes.queue_waits_s) == 2
    await eventually(lambda: item.in_flight == 0)
    item.assert_accounted()


async def test_a_client_that_leaves_the_queue_is_gone_at_once(
    engine: Any, harness: Any, wire: Any, eventually: Any
) -> None:
    """Its request reaches no engine, and whoever is behind moves up."""
    held = Held(wire)
    item = await harness(await engine(held), limits={"max_in_flight": 1})
    first = await asking(item, wire, "q0")
    await eventually(lambda: held.begun)
    leaver = await asking(item, wire, "q1")
    await eventually(lambda: item.notes.waiting == 1)
    last = await asking(item, wire, "q2")
    await eventually(lambda: item.notes.waiting == 2)
    leaver.reset()
    await eventually(lambda: item.notes.waiting == 1, timeout_s=2)
    assert item.notes.last.aborted
    held.answer_next()
    assert (await first.answer()).status == 200
    await eventually(lambda: held.begun == ["q0", "q2"])
    held.answer_next()
    assert (await last.answer()).status == 200
    await eventually(lambda: item.in_flight == 0)
    item.assert_accounted()


async def test_nobody_waits_for_longer_than_the_queue_s_time(
    engine: Any, harness: Any, wire: Any, eventually: Any
) -> None:
    """503 with Retry-After, and the place is free."""
    held = Held(wire)
    item = await harness(await engine(held), limits={"max_in_flight": 1}, timeouts={"queue_s": 0.2})
    first = await asking(item, wire, "q0")
    await eventually(lambda: held.begun)
    answer = await (await asking(item, wire, "q1")).answer()
    assert (answer.status, answer.code, answer.one("retry-after")) == (503, "queue_timeout", "1")
    assert answer.all("x-should-retry") == []
    assert item.notes.waiting == 0
    held.answer_next()
    assert (await first.answer()).status == 200
    assert held.begun == ["q0"]


async def test_the_queue_is_bounded_in_number(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """One more is told to come again."""
    held = Held(wire)
    item = await harness(await engine(held), limits={"max_in_flight": 1, "queue_requests": 1})
    await asking(item, wire, "q0")
    await eventually(lambda: held.begun)
    await asking(item, wire, "q1")
    await eventually(lambda: item.notes.waiting == 1)
    answer = await (await asking(item, wire, "q2")).answer()
    assert (answer.status, answer.code, answer.one("retry-after")) == (503, "queue_full", "1")


async def test_without_a_limit_nobody_waits(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """`max_in_flight: 0`, as by default."""
    held = Held(wire)
    item = await harness(await engine(held))
    for number in range(20):
        await asking(item, wire, f"q{number}")
    await eventually(lambda: len(held.begun) == 20)
    assert item.plane.forwarder.waiting is None


async def test_tenants_take_turns_in_the_queue(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """A tenant with twenty requests waiting holds up another's first one by one request."""
    held = Held(wire)
    keys = {name: f"Authorization: Bearer wr-{name}" for name in "ab"}
    listed = [
        {"name": name, "keys": [hashlib.sha256(f"wr-{name}".encode()).hexdigest()], "isolated": False} for name in "ab"
    ]
    item = await harness(await engine(held), limits={"max_in_flight": 1}, tenants=listed)
    for number in range(20):
        await asking(item, wire, f"a{number}", keys["a"])
        await eventually(lambda number=number: len(held.begun) + item.notes.waiting == number + 1)
    for number in range(2):
        await asking(item, wire, f"b{number}", keys["b"])
        await eventually(lambda number=number: item.notes.waiting == 20 + number)
    for number in range(5):
        await eventually(lambda number=number: len(held.begun) == number + 1)
        held.answer_next()
    assert sorted(held.begun[1:5]) == ["a1", "a2", "b0", "b1"]


async def test_a_tenant_that_fills_the_queue_gives_way(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """Its latest request gets a 429 when another tenant comes."""
    held = Held(wire)
    listed = [
        {"name": name, "keys": [hashlib.sha256(f"wr-{name}".encode()).hexdigest()], "isolated": False} for name in "ab"
    ]
    limits = {"max_in_flight": 1, "queue_requests": 2}
    item = await harness(await engine(held), limits=limits, tenants=listed)
    clients = []
    for number in range(3):
        clients.append(await asking(item, wire, f"a{number}", "Authorization: Bearer wr-a"))
        await eventually(lambda number=number: len(held.begun) + item.notes.waiting == number + 1)
    await asking(item, wire, "b0", "Authorization: Bearer wr-b")
    answer = await clients[2].answer()
    assert (answer.status, answer.code, answer.one("retry-after")) == (429, "tenant_queue_full", "1")
    assert item.notes.waiting == 2


async def test_more_urgent_requests_go_first(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """By the request's own `priority`, lower first, as the engine has it; and it passes on."""
    held = Held(wire)
    one = await engine(held)
    item = await harness(one, limits={"max_in_flight": 1})
    read = item.reader.read

    def with_priority(path: str, body: bytes, drafted: Any = None) -> Any:
        prompt = read(path, body, drafted)
        prompt.priority = json.loads(body).get("priority")
        return prompt

    item.reader.read = with_priority
    for number, priority in enumerate((0, 5, 0, -1)):
        await asking(item, wire, f"q{number}", priority=priority)
        await eventually(lambda number=number: len(held.begun) + item.notes.waiting == number + 1)
    for number in range(4):
        await eventually(lambda number=number: len(held.begun) == number + 1)
        held.answer_next()
    assert held.begun == ["q0", "q3", "q2", "q1"]
    assert json.loads(one.asked[1].body)["priority"] == -1


async def test_a_replica_that_joins_takes_who_waits(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """No request has to end for it."""
    held = Held(wire)
    item = await harness(await engine(held), limits={"max_in_flight": 1})
    await asking(item, wire, "q0")
    await eventually(lambda: held.begun)
    client = await asking(item, wire, "q1")
    await eventually(lambda: item.notes.waiting == 1)
    item.announce(await engine(), "r1")
    answer = await client.answer()
    assert (answer.status, answer.one("x-warmroute-replica")) == (200, "r1")


async def test_a_replica_that_never_answers_holds_nobody_else_up(engine: Any, harness: Any, wire: Any) -> None:
    """It gets no more than its limit, and all others are served by the rest (RTE-08)."""

    async def hang(asked: Any, writer: Any) -> None:
        await asyncio.sleep(3_600)

    item = await harness(
        await engine(hang), await engine(), limits={"max_in_flight": 2}, placement={"policy": "random"}
    )
    clients = [await asking(item, wire, f"q{number}") for number in range(40)]
    answers = [asyncio.ensure_future(client.answer()) for client in clients]
    done, pending = await asyncio.wait(answers, timeout=5)
    while len(pending) > 2 and done:
        done, pending = await asyncio.wait(pending, timeout=5)
    assert len(pending) == 2
    assert {answer.result().one("x-warmroute-replica") for answer in answers if answer.done()} == {"r1"}
    for answer in pending:
        answer.cancel()


async def test_an_ejected_replica_that_hangs_costs_one_request_at_a_time(
    engine: Any, harness: Any, wire: Any, eventually: Any
) -> None:
    """One probe is on its way, and no other follows it while that hangs."""

    async def hang(asked: Any, writer: Any) -> None:
        await asyncio.sleep(3_600)

    hanging = await engine(hang)
    retry = {"eject_after": 1, "eject_s": 0.2}
    item = await harness(hanging, retry=retry, timeouts={"first_byte_s": 0.3}, placement={"policy": "round-robin"})
    assert (await item.ask(wire.post(wire.chat_body()))).code == "upstream_timeout"
    item.announce(await engine(), "r1")
    item.plane.forwarder.timeouts = item.plane.forwarder.timeouts.model_copy(update={"first_byte_s": 60.0})
    replica = item.fleet.replicas["r0"]
    await eventually(lambda: replica.state(asyncio.get_running_loop().time()) == "ready")
    clients = [await asking(item, wire, f"q{number}") for number in range(20)]
    answers = [asyncio.ensure_future(client.answer()) for client in clients]
    await eventually(lambda: sum(answer.done() for answer in answers) == 19)
    assert len(hanging.asked) == 2
    assert replica.state(asyncio.get_running_loop().time() + 5) == "ejected"
    for answer in answers:
        answer.cancel()


@pytest.mark.parametrize(("reserve", "code"), [(0, "connect_failed"), (100, None)])
async def test_retries_have_a_budget(engine: Any, harness: Any, wire: Any, reserve: int, code: str | None) -> None:
    """Out of it, a request that a replica did not take gets its error; nothing storms the rest."""
    gone, good = await engine(), await engine()
    gone.refuse()
    retry = {"budget_share": 0.0, "budget_reserve": reserve, "eject_after": 1_000}
    item = await harness(gone, good, retry=retry, placement={"policy": "round-robin"})
    answers = [await item.ask(wire.post(wire.chat_body())) for _ in range(4)]
    failed = [answer.code for answer in answers if answer.status != 200]
    assert set(failed) == ({code} if code else set())
