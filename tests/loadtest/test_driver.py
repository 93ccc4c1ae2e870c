"""The driver, in virtual time against a client of known delays: what it measures is arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from loadtest.driver.driver import Driver
from loadtest.driver.holding import Sending
from loadtest.driver.reply import Reply
from loadtest.report.percentiles import quantile
from loadtest.workloads.callers import Callers
from loadtest.workloads.conversations import Kind, Session, Turn
from loadtest.workloads.schedule import Lane, Stage, closed_loop
from tests.loadtest.virtual_time import VirtualLoop, now_s, run


class Endpoint:
    """Answers one request at a time if `serial`, else all at once; each takes what `delays` says next."""

    def __init__(self, delays: Iterator[float], gap_s: float = 0.0, serial: bool = False) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self._delays = delays
        self._gap_s = gap_s
        self._turn = asyncio.Semaphore(1 if serial else 1_000_000)

    async def send(self, body: Mapping[str, Any], clock: Callable[[], float], key: str = "") -> Reply:
        """Two pieces: after the delay, and `gap_s` later."""
        self.bodies.append(body)
        delay_s = next(self._delays)
        reply = Reply(status=200)
        async with self._turn:
            await asyncio.sleep(delay_s)
            reply.pieces_s.append(clock())
            await asyncio.sleep(self._gap_s)
            reply.pieces_s.append(clock())
        reply.answer.text = f"answer {len(self.bodies)}"
        return reply


def session(number: int, turns: int = 1, think_s: float = 0.0) -> Session:
    said = tuple(Turn(f"question {turn}", 4, think_s if turn else 0.0) for turn in range(turns))
    return Session(f"s{number}", Kind.CHAT, "", said, remembers=True)


def arrivals(times_s: list[float]) -> list[Lane[Session]]:
    return [Lane(at_s, iter((session(number),))) for number, at_s in enumerate(times_s)]


def forever(value: float) -> Iterator[float]:
    while True:
        yield value


def test_percentiles_of_known_delays() -> None:
    """1,000 requests with delays of 1 to 1,000 ms: the percentiles are those of the delays."""
    delays = [((number * 617) % 1_000 + 1) / 1_000 for number in range(1_000)]
    driver = Driver(Endpoint(iter(delays), gap_s=0.02), Sending(Callers(("m",))), clock=now_s)
    run(driver.run(arrivals([number * 0.003 for number in range(1_000)])))
    ttfts = [record.ttft_s for record in driver.records if record.ttft_s is not None]
    assert quantile(ttfts, 0.5) == pytest.approx(0.500, abs=1e-6)
    assert quantile(ttfts, 0.99) == pytest.approx(0.990, abs=1e-6)
    assert all(record.total_s == pytest.approx((record.ttft_s or 0) + 0.02, abs=1e-6) for record in driver.records)
    assert all(list(record.gaps_s) == pytest.approx([0.02], abs=1e-5) for record in driver.records)
    assert not driver.generator().was_bottleneck


def test_a_system_that_hangs_is_seen_by_all_who_came_meanwhile() -> None:
    """One request at a time, 1 ms each, and the 100th takes 2 s: those that arrive meanwhile wait, in order.

    A generator that waits for an answer before it sends the next would count one slow request in a thousand.
    """
    delays = [2.0 if number == 100 else 0.001 for number in range(1_000)]
    driver = Driver(Endpoint(iter(delays), serial=True), Sending(Callers(("m",))), clock=now_s)
    run(driver.run(arrivals([number * 0.005 for number in range(1_000)])))
    ttfts = [record.ttft_s or 0 for record in driver.records]
    # The backlog shrinks by 4 ms a request: request 100 + k waits 2 - 0.004 k seconds.
    expected = [0.001] * 100 + [2 - 0.004 * k if 2 - 0.004 * k > 0.001 else 0.001 for k in range(900)]
    assert ttfts == pytest.approx(expected, abs=1e-6)
    assert quantile(ttfts, 0.9) == pytest.approx(quantile(expected, 0.9), abs=1e-6)
    assert quantile(ttfts, 0.9) > 1.5


def test_time_in_a_busy_generator_counts_and_is_told() -> None:
    """When the process itself is busy for 300 ms, what was due meanwhile is late by the rest of it."""
    driver = Driver(Endpoint(forever(0.05)), Sending(Callers(("m",))), clock=now_s)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_later(0.4999, loop.block, 0.3)
        await driver.run(arrivals([number * 0.01 for number in range(100)]))

    run(main())
    late = [record for record in driver.records if record.late_s > 1e-3]
    assert [record.intended_s for record in late] == pytest.approx([0.5 + number * 0.01 for number in range(30)])
    for record in driver.records:
        # What came while it was busy was seen afterwards.
        seen_late = record.intended_s < 0.4999 < record.intended_s + 0.05
        true_s = 0.7999 - record.intended_s if seen_late else 0.05 + record.late_s
        assert record.ttft_s == pytest.approx(true_s, abs=1e-6)
    generator = driver.generator()
    assert generator.was_bottleneck
    assert "BOTTLENECK" in generator.sentence()
    assert generator.late_max_s == pytest.approx(0.2999, abs=1e-3)


def test_later_turns_are_due_when_their_user_has_read_and_thought() -> None:
    """Answers of 0.5 s and pauses of 2 s: turns are due at 1, 3.5 and 6 s, and carry the answers before."""
    endpoint = Endpoint(forever(0.5))
    driver = Driver(endpoint, Sending(Callers(("m",))), clock=now_s)
    run(driver.run([Lane(1.0, iter((session(0, turns=3, think_s=2.0),)))]))
    assert [record.intended_s for record in driver.records] == pytest.approx([1.0, 3.5, 6.0])
    assert [len(body["messages"]) for body in endpoint.bodies] == [1, 3, 5]
    assert endpoint.bodies[2]["messages"][1] == {"role": "assistant", "content": "answer 1"}


def test_users_of_a_closed_loop_take_the_next_session_when_they_are_free() -> None:
    """Two users, 10 sessions of 1 s: five a user, one after the other."""
    driver = Driver(Endpoint(forever(1.0)), Sending(Callers(("m",))), clock=now_s)
    run(driver.run(closed_loop([session(number) for number in range(10)], users=2)))
    assert sorted(record.intended_s for record in driver.records) == pytest.approx(
        [at_s for at_s in range(5) for _ in range(2)]
    )


def test_time_can_run_faster() -> None:
    """With 10 virtual seconds a second, a delay of 0.1 s is 1 s, and an hour's arrivals take 6 minutes."""
    driver = Driver(Endpoint(forever(0.1)), Sending(Callers(("m",)), time_scale=10), clock=now_s)

    async def main() -> float:
        await driver.run(arrivals([0.0, 3_600.0]))
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(360.1)
    assert [record.ttft_s for record in driver.records] == pytest.approx([1.0, 1.0])


def test_the_warm_up_is_sent_and_not_measured() -> None:
    """What is due before its end is left out, whenever it ends."""
    driver = Driver(Endpoint(forever(5.0)), Sending(Callers(("m",)), warm_up_s=2.0), clock=now_s)
    run(driver.run(arrivals([0.0, 1.9, 2.0, 3.0])))
    assert len(driver.records) == 4
    assert [record.intended_s for record in driver.measured] == [2.0, 3.0]


def test_nothing_is_sent_when_the_time_is_over() -> None:
    """A closed loop ends with the turns that are due until then."""
    driver = Driver(Endpoint(forever(1.0)), Sending(Callers(("m",)), until_s=2.5), clock=now_s)
    run(driver.run(closed_loop((session(number) for number in range(1_000)), users=1)))
    assert [record.intended_s for record in driver.records] == pytest.approx([0.0, 1.0, 2.0])


def test_records_know_their_stage() -> None:
    """A stage is that of the session's arrival."""
    stages = [Stage(1, 10), Stage(2, 10), Stage(3, 10)]
    driver = Driver(Endpoint(forever(1.0)), Sending(Callers(("m",))), stages, clock=now_s)
    run(driver.run(arrivals([0.0, 9.9, 10.0, 25.0, 31.0])))
    assert [record.stage for record in driver.records] == [0, 0, 1, 2, 2]


def test_a_failed_turn_ends_its_session() -> None:
    """The rest would build on an answer that never came."""

    class Refusing:
        async def send(self, body: Mapping[str, Any], clock: Callable[[], float], key: str = "") -> Reply:
            return Reply(status=503, cause="http-503 queue_full")

    driver = Driver(Refusing(), Sending(Callers(("m",))), clock=now_s)
    run(driver.run([Lane(0.0, iter((session(0, turns=3), session(1, turns=3))))]))
    assert [(record.session, record.cause) for record in driver.records] == [
        ("s0", "http-503 queue_full"),
        ("s1", "http-503 queue_full"),
    ]
