"""Engine models: figures worked out by hand."""

from __future__ import annotations

import random

import pytest

from replica.simengine.core.scheduler import Scheduler
from router.tools.simulation.batched import BatchedEngine
from router.tools.simulation.engine import EngineShape
from router.tools.simulation.requests import Job, Session, Turn
from router.tools.simulation.serial import SerialEngine
from router.tools.simulation.timeline import ASK, Timeline


class Heard:
    """Notes what an engine tells."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.first_tokens: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.blocks: set[int] = set()
        self.evicted: list[int] = []

    def stored(self, replica, blocks) -> None:
        self.blocks.update(blocks)

    def removed(self, replica, blocks) -> None:
        self.evicted += blocks
        self.blocks.difference_update(blocks)

    def first_token(self, job) -> None:
        self.first_tokens[job.number] = self.timeline.now_s

    def finished(self, job) -> None:
        self.ends[job.number] = self.timeline.now_s


def _job(number: int, tokens: int, blocks: tuple[int, ...], output: int = 4, answer: tuple[int, ...] = ()) -> Job:
    return Job(number, Session(0.0, (Turn(tokens, output, blocks, answer),)), 0, 0.0)


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


@pytest.fixture
def heard(timeline) -> Heard:
    return Heard(timeline)


def test_serial_computes_one_prompt_after_the_other(timeline, heard) -> None:
    """Two prompts of 800 tokens at 8,000/s end after 0.1 and 0.2 s; answers of 4 tokens take 0.1 s beside."""
    engine = SerialEngine(0, EngineShape(100, 512), timeline, heard)
    for number, blocks in enumerate([(1, 2), (3, 4)]):
        engine.submit(_job(number, 800, blocks))
    assert engine.remaining_tokens() == pytest.approx(1_600)
    timeline.run()
    assert heard.first_tokens == pytest.approx({0: 0.1, 1: 0.2})
    assert heard.ends == pytest.approx({0: 0.2, 1: 0.3})
    assert engine.running == 0


def test_serial_hits_whole_and_partial_blocks_from_dispatch(timeline, heard) -> None:
    """An equal prompt hits all of its tokens and computes one; half of its blocks hit half of it."""
    engine = SerialEngine(0, EngineShape(100, 512), timeline, heard)
    first, same, half = _job(0, 800, (1, 2)), _job(1, 800, (1, 2)), _job(2, 800, (1, 9))
    for job in (first, same, half):
        engine.submit(job)
    assert [job.cached_tokens for job in (first, same, half)] == [0, 800, 512]
    assert engine.computed_tokens == 800 + 1 + 288


def test_serial_evicts_the_deepest_block_of_the_oldest_request(timeline, heard) -> None:
    """Three blocks hold two requests' worth: the first one's deepest block goes first."""
    engine = SerialEngine(0, EngineShape(3, 512), timeline, heard)
    engine.submit(_job(0, 1_024, (1, 2)))
    engine.submit(_job(1, 1_024, (3, 4)))
    assert heard.evicted == [2]
    assert heard.blocks == {1, 3, 4}
    assert engine.held_blocks((1, 2)) == 1


def test_batched_steps_take_decode_time_and_prompt_tokens(timeline, heard) -> None:
    """One prompt of 800 tokens: 0.025 + 0.1 s to its first token, then 0.025 s a token."""
    engine = BatchedEngine(0, EngineShape(100, 512), timeline, heard)
    engine.submit(_job(0, 800, (1, 2)))
    timeline.run()
    assert heard.first_tokens == pytest.approx({0: 0.125})
    assert heard.ends == pytest.approx({0: 0.125 + 3 * 0.025})


def test_batched_shares_a_step_between_prompts_that_come_together(timeline, heard) -> None:
    """Two equal prompts at one moment: the second hits the first's whole block in the same step, so both end as one."""
    engine = BatchedEngine(0, EngineShape(100, 512), timeline, heard)
    first, second = _job(0, 800, (1, 2)), _job(1, 800, (1, 2))
    engine.submit(first)
    engine.submit(second)
    timeline.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 512)
    assert heard.first_tokens == pytest.approx({0: 0.025 + (800 + 288) / 8_000, 1: 0.025 + (800 + 288) / 8_000})


def test_batched_caches_answers_under_their_names(timeline, heard) -> None:
    """The next turn finds the whole blocks of prompt and answer, less the answer's last token."""
    engine = BatchedEngine(0, EngineShape(100, 16), timeline, heard)
    engine.submit(_job(0, 40, (1, 2, 3), output=10, answer=(4,)))  # 49 tokens with KV: 3 whole blocks
    timeline.run()
    following = _job(1, 60, (1, 2, 4, 5))
    engine.submit(following)
    timeline.run()
    assert following.cached_tokens == 48


def test_a_stopped_engine_gives_back_what_it_had_and_says_no_more(timeline, heard) -> None:
    """Both models: nothing is heard of requests that were in a lost replica."""
    for kind in (SerialEngine, BatchedEngine):
        engine = kind(0, EngineShape(100, 512), timeline, heard)
        job = _job(0, 800, (1, 2))
        engine.submit(job)
        assert engine.stop() == [job]
    timeline.run()
    assert heard.first_tokens == {}
    assert heard.ends == {}


def test_batched_knows_what_waits_and_what_is_held(timeline, heard) -> None:
    """Of one that waits for room, what the cache lacks is left to compute; usage is the blocks of those that run."""
    engine = BatchedEngine(0, EngineShape(10, 16), timeline, heard)
    engine.submit(_job(0, 80, (1, 2, 3, 4, 5), output=30))
    seen: list[tuple[int, float, float]] = []

    def ask() -> None:
        engine.submit(_job(1, 100, (1, 2, 3, 6, 7, 8, 9)))  # 4 more blocks than are free
        seen.append((engine.waiting(), engine.used_share(), engine.remaining_tokens()))

    timeline.at(0.5, ask, who=ASK)
    timeline.run()
    # 0.035 s to the first token, then 0.025 s each: at 0.5 s 19 steps have begun after it, so 99 tokens in 7 blocks.
    assert seen[0] == (1, pytest.approx(0.7), 100 - 48)
    assert len(heard.ends) == 2


def _everything(monkeypatch, seed: int, *, steadily: bool) -> tuple[list, list]:
    """What comes of random traffic on one small engine: requests' times and hits, and all it told of blocks."""
    rng = random.Random(seed)
    timeline, told = Timeline(), []
    heard = Heard(timeline)
    heard.stored = lambda replica, blocks: told.append((timeline.now_s, "stored", *blocks))
    heard.removed = lambda replica, blocks: told.append((timeline.now_s, "removed", *blocks))
    if not steadily:
        monkeypatch.setattr(Scheduler, "steady_run", lambda scheduler: None)
    engine = BatchedEngine(0, EngineShape(40, 16, max_running=5, decode_request_s=0.001), timeline, heard)
    jobs = []
    for number in range(60):
        kind, blocks = rng.randrange(6), rng.randint(1, 12)
        names = tuple([100 * kind + depth for depth in range(blocks)] + [10_000 + number])
        tokens = 16 * blocks + rng.randint(1, 16)
        jobs.append(_job(number, tokens, names, output=rng.randint(1, 90), answer=(20_000 + number,)))
        timeline.at(rng.random() * 20, engine.submit, jobs[-1], who=ASK)
    timeline.run()
    monkeypatch.undo()
    return [(job.cached_tokens, heard.first_tokens[job.number], heard.ends[job.number]) for job in jobs], told


@pytest.mark.parametrize("seed", range(8))
def test_steps_taken_as_one_come_to_what_single_steps_come_to(monkeypatch, seed) -> None:
    """Every first token, end, hit, store and eviction, to the last digit, with queues and preemption."""
    assert _everything(monkeypatch, seed, steadily=True) == _everything(monkeypatch, seed, steadily=False)
