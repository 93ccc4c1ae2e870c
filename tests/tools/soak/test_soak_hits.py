"""What counts of a conversation's later turns, and when a hit rate is back."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.workloads.answers import StreamedAnswer
from loadtest.workloads.conversations import Kind, Session
from loadtest.workloads.conversations import Turn as Said
from router.tools.chaos.traffic import Attempt
from router.tools.soak.hits import Hits, Turn, Window


def chat(name: str, turns: int = 3, remembers: bool = True) -> Session:
    said = tuple(Said("hello", 8, 0.0) for _ in range(turns))
    return Session(name, Kind.CHAT, "", said, remembers)


def answer(
    hits: Hits, session: Session, number: int, prompt: int | None, cached: int | None, at_s: float = 0.0
) -> None:
    told = StreamedAnswer(prompt_tokens=prompt, cached_tokens=cached, done=True)
    hits.answered(session, number, Attempt(0, at_s, answer=told))


def test_a_later_turn_is_held_against_the_turn_before_it() -> None:
    """In whole blocks of 32; what is cached beyond that does not make up for another's loss."""
    hits, one, other = Hits(), chat("one"), chat("other")
    answer(hits, one, 0, 100, 0)
    answer(hits, other, 0, 70, 64)
    assert hits.turns == 0
    answer(hits, one, 1, 200, 112)  # all 96 of the 100
    assert (hits.turns, hits.share) == (1, 1.0)
    answer(hits, other, 1, 150, 0)  # none of 64
    assert hits.share == pytest.approx(96 / 160)


def test_what_tells_nothing_is_left_out() -> None:
    """Sessions without memory, answers without counts, and a turn whose predecessor was not answered."""
    hits = Hits()
    document = chat("document", remembers=False)
    answer(hits, document, 0, 500, 0)
    answer(hits, document, 1, 500, 480)
    one = chat("one")
    answer(hits, one, 0, 100, None)
    answer(hits, one, 1, 200, 160)
    assert hits.turns == 0


def test_a_window_holds_the_last_turns_since_a_moment() -> None:
    """Turns that began before an event was over say nothing of what is after it."""
    window = Window(10.0, goal=0.9, size=2)
    window.add(Turn(9.9, 32, 32))
    assert window.seen == 0
    window.add(Turn(10.0, 32, 0))
    window.add(Turn(11.0, 32, 32))
    assert not window.reached
    window.add(Turn(12.0, 32, 32))
    assert window.reached
    assert window.seen == 3


@pytest.mark.parametrize(("cached", "reached"), [(96, True), (0, False)])
async def test_recovery_is_waited_for_and_ends_after_its_bound(cached: int, reached: bool) -> None:
    """By turns: the hit rate is back, or so many have come without it."""
    hits = Hits()
    waiting = asyncio.create_task(hits.until_reached(Window(0.0, goal=0.9, size=3), most_turns=5))
    await asyncio.sleep(0)
    seen = 0
    for number in range(10):
        if waiting.done():
            break
        one = chat(f"chat {number}", turns=2)
        answer(hits, one, 0, 100, 0, at_s=1.0)
        answer(hits, one, 1, 200, cached, at_s=1.0)
        seen += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert await waiting is reached
    assert seen == (3 if reached else 5)
