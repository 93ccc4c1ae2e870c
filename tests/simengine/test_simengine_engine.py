"""A core in real time: paced by its steps, announcing before it delivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count, pairwise

import pytest

from replica.simengine.core.events import CacheEvent
from replica.simengine.core.hashing import BlockHasher
from replica.simengine.core.request import Request
from replica.simengine.core.scheduler import Limits, Scheduler, Step
from replica.simengine.core.timing import Timing
from replica.simengine.engine import Engine

Eventually = Callable[..., Awaitable[object]]


class NotingScheduler(Scheduler):
    """Notes when each step ended, by the engine's own clock."""

    ends_s: list[float]

    def complete(self, step: Step, now_s: float) -> list[Request]:
        self.ends_s.append(now_s)
        return super().complete(step, now_s)


class Bench:
    """An engine that notes in order what it published and delivered."""

    def __init__(self, decode_step_s: float, time_scale: float = 1.0) -> None:
        self.log: list[str] = []
        self.scheduler = NotingScheduler(Limits(num_blocks=100), BlockHasher("sha256_cbor", 16))
        self.scheduler.ends_s = []
        timing = Timing(1e9, decode_step_s)
        self.engine = Engine(self.scheduler, timing, time_scale, self.published, lambda: None)

    def published(self, events: list[CacheEvent]) -> None:
        self.log += [type(event).__name__ for event in events]

    def ask(self, tokens: int, max_tokens: int) -> Request:
        request = Request("r", list(range(tokens)), max_tokens, count(500).__next__)
        self.engine.submit(request, lambda: self.log.append(f"token {request.output_tokens}"))
        return request


async def test_a_steps_events_leave_before_its_tokens(eventually: Eventually) -> None:
    """Who sees the first token can rely on the prompt's blocks being announced."""
    bench = Bench(0.001)
    task = asyncio.create_task(bench.engine.run())
    request = bench.ask(32, 2)
    await eventually(lambda: request.finish_reason)
    assert bench.log == ["BlocksStored", "token 1", "token 2"]
    task.cancel()


@pytest.mark.parametrize(("blocked_s", "lost"), [(0.05, False), (0.6, True)])
async def test_a_late_wake_up_is_made_up_for(eventually: Eventually, blocked_s: float, lost: bool) -> None:
    """Steps are planned from the step before: a loop blocked for 50 ms shifts none of them; 600 ms are partly lost."""
    bench = Bench(0.002)
    task = asyncio.create_task(bench.engine.run())
    request = bench.ask(10, 500)
    await eventually(lambda: request.output_tokens > 3)
    time.sleep(blocked_s)  # noqa: ASYNC251 - the loop is blocked on purpose
    await eventually(lambda: request.output_tokens > 60)
    gaps = [later - earlier for earlier, later in pairwise(bench.scheduler.ends_s)]
    assert min(gaps) == pytest.approx(0.002)
    assert (max(gaps) > 0.1) == lost
    bench.engine.end(request, "abort")
    task.cancel()


async def test_time_scale_divides_real_time_alone(eventually: Eventually) -> None:
    """By the engine's clock a step takes what it takes, whatever the scale."""
    bench = Bench(0.5, time_scale=1000.0)
    task = asyncio.create_task(bench.engine.run())
    request = bench.ask(10, 20)
    await eventually(lambda: request.finish_reason)
    gaps = [later - earlier for earlier, later in pairwise(bench.scheduler.ends_s)]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(0.5)
    task.cancel()


async def test_nothing_is_delivered_after_an_end(eventually: Eventually) -> None:
    """An aborted request's sink is not called again, and the engine goes on with others."""
    bench = Bench(0.001)
    task = asyncio.create_task(bench.engine.run())
    request = bench.ask(10, 10_000)
    await eventually(lambda: request.output_tokens > 2)
    bench.engine.end(request, "abort")
    heard = len(bench.log)
    other = bench.ask(10, 3)
    await eventually(lambda: other.finish_reason)
    tokens = [entry for entry in bench.log[heard:] if entry.startswith("token")]
    assert tokens == ["token 1", "token 2", "token 3"]
    assert bench.engine.load == 0
    task.cancel()


async def test_it_sleeps_while_there_is_nothing_to_do(eventually: Eventually) -> None:
    """Between requests no step is taken, though a step costs no time here."""
    bench = Bench(0.0)
    task = asyncio.create_task(bench.engine.run())
    for _ in range(2):
        request = bench.ask(10, 3)
        await eventually(lambda request=request: request.finish_reason)
        for _ in range(50):
            await asyncio.sleep(0)
    assert len(bench.scheduler.ends_s) == 6
    task.cancel()
