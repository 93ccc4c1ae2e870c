"""Requests that end in one turn of the loop are told together, each once and in order."""

from __future__ import annotations

import asyncio

import pytest

from router.placement import Placement
from router.proxy.noting import Noting
from router.proxy.turn import MANY, TOGETHER, Turn
from router.scheduling.decision import Outcome
from router.telemetry.recorder import RequestFacts

OUTCOME = Outcome(200, None, 9, 0, 1, 0.1, 0.2)


class Told:
    """Records that keep the ids they are told, and fail over one of them."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def finished(self, placement: Placement | None, outcome: Outcome, facts: RequestFacts) -> None:
        self.ids.append(facts.request_id)
        if facts.request_id == "bad":
            raise RuntimeError("not to be told")


@pytest.fixture
def told() -> Told:
    return Told()


def noting_of(told: Told, expecting: int) -> Noting:
    turn = Turn(asyncio.get_running_loop())
    turn.expecting = expecting
    return Noting(asyncio.get_running_loop(), turn, told)  # type: ignore[arg-type]


def end(noting: Noting, *ids: str) -> None:
    for name in ids:
        noting.ended(None, OUTCOME, RequestFacts(name, "POST", "/v1/completions"))


async def test_where_few_run_an_end_is_told_at_once(told) -> None:
    """Nothing is gained by waiting for others then."""
    end(noting_of(told, MANY - 1), "a", "b")
    assert told.ids == ["a", "b"]


async def test_where_many_run_ends_are_told_at_the_turns_end_or_when_there_are_enough(told) -> None:
    """In the order in which they came, also where fewer run meanwhile; each once."""
    turn = Turn(asyncio.get_running_loop())
    turn.expecting = MANY
    noting = Noting(asyncio.get_running_loop(), turn, told)  # type: ignore[arg-type]
    names = [str(number) for number in range(TOGETHER + 2)]
    end(noting, names[0])
    turn.expecting = 0
    end(noting, *names[1 : TOGETHER - 1])
    assert told.ids == []
    end(noting, names[TOGETHER - 1])
    assert told.ids == names[:TOGETHER]
    turn.expecting = MANY
    end(noting, *names[TOGETHER:])
    assert told.ids == names[:TOGETHER]
    await asyncio.sleep(0)
    assert told.ids == names
    await asyncio.sleep(0)
    assert told.ids == names


async def test_an_end_that_cannot_be_told_takes_no_other_with_it(told) -> None:
    """The error is the loop's to report; the others are told all the same."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    end(noting_of(told, MANY), "a", "bad", "b", "c")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told.ids == ["a", "bad", "b", "c"]
    assert len(errors) == 1


async def test_whoever_had_the_answer_finds_the_request_counted(harness, engine, wire) -> None:
    """Of many requests at once none is counted later than its client can ask about it, and each once."""
    all_came, came = asyncio.Event(), 0

    async def behave(asked, writer) -> None:
        nonlocal came
        came += 1
        if came == 2 * MANY:
            all_came.set()
        await asyncio.wait_for(all_came.wait(), 10)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    item = await harness(await engine(behave))
    clients = [await item.client() for _ in range(2 * MANY)]

    async def ask(client) -> int:
        answer = await client.ask(wire.post(wire.chat_body()))
        told_of = len(item.notes.outcomes)
        assert answer.status == 200
        return told_of

    counts = sorted(await asyncio.gather(*map(ask, clients)))
    assert all(count >= place for place, count in enumerate(counts, 1))
    item.assert_accounted()


async def test_what_waits_to_be_told_is_told_when_the_data_plane_closes(harness, engine, wire) -> None:
    """Of requests that its end broke off, too."""
    arrived, came = asyncio.Event(), 0

    async def behave(asked, writer) -> None:
        nonlocal came
        came += 1
        if came == 2 * MANY:
            arrived.set()
        await asyncio.sleep(30)

    item = await harness(await engine(behave))
    for _ in range(2 * MANY):
        (await item.client()).send(wire.post(wire.chat_body()))
    await asyncio.wait_for(arrived.wait(), 10)
    await item.plane.close()
    assert len(item.notes.outcomes) == 2 * MANY
    item.assert_accounted()
