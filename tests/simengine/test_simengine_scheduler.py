"""Continuous batching: hits, chunks, sharing, queueing, preemption."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from replica.simengine.core.events import BlocksStored
from replica.simengine.core.hashing import BlockHasher
from replica.simengine.core.request import Request, State
from replica.simengine.core.scheduler import Limits, Scheduler
from replica.simengine.core.timing import Timing

SYSTEM = list(range(1000, 1050))
QUESTION_A = list(range(2000, 2020))
QUESTION_B = list(range(3000, 3020))
FOLLOW_UP = list(range(4000, 4012))
_ids = count()


def scheduler_of(num_blocks: int = 1000, **limits: int) -> Scheduler:
    return Scheduler(Limits(num_blocks=num_blocks, **limits), BlockHasher("sha256_cbor", 16))


def ask(scheduler: Scheduler, prompt: list[int], max_tokens: int = 1, **more: object) -> Request:
    """Queue a request; its answer counts up from 50,000."""
    answer: Callable[[], int] = count(50_000).__next__
    request = Request(str(next(_ids)), list(prompt), max_tokens, answer, **more)  # type: ignore[arg-type]
    scheduler.add(request, 0.0)
    return request


def finish(scheduler: Scheduler) -> int:
    """Step until there is nothing to do; how many steps that took."""
    steps = 0
    while scheduler.has_work:
        scheduler.complete(scheduler.schedule(), float(steps))
        steps += 1
    return steps


def hit(scheduler: Scheduler, prompt: list[int], max_tokens: int = 1, **more: object) -> tuple[int | None, int]:
    """Run one request alone; (tokens from the cache, tokens asked)."""
    request = ask(scheduler, prompt, max_tokens, **more)
    finish(scheduler)
    return request.cached_tokens, request.prompt_tokens


def test_the_textbook_conversation_hits_exactly_what_it_should() -> None:
    """Shared system prompt, answer and follow-up, a shifted prompt, a salt: block 16, to the token."""
    scheduler = scheduler_of()
    first = ask(scheduler, SYSTEM + QUESTION_A, 30)
    finish(scheduler)
    assert (first.cached_tokens, first.prompt_tokens) == (0, 70)
    assert hit(scheduler, SYSTEM + QUESTION_B) == (48, 70)
    answer = list(first.output())
    assert len(answer) == 30
    assert hit(scheduler, SYSTEM + QUESTION_A + answer + FOLLOW_UP) == (96, 112)
    assert hit(scheduler, [9, *SYSTEM, *QUESTION_A]) == (0, 71)
    assert hit(scheduler, SYSTEM + QUESTION_A, salt="other") == (0, 70)
    assert hit(scheduler, SYSTEM + QUESTION_A, salt="other") == (64, 70)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """A prompt of exactly four blocks hits three of them when it is sent again."""
    scheduler = scheduler_of()
    assert hit(scheduler, list(range(64))) == (0, 64)
    assert hit(scheduler, list(range(64))) == (48, 64)


def test_the_last_sampled_token_is_not_cached() -> None:
    """15 prompt tokens and one of output have no full block; with a second output token they have one."""
    for max_tokens, blocks in ((1, 0), (2, 1)):
        scheduler = scheduler_of()
        ask(scheduler, list(range(15)), max_tokens)
        finish(scheduler)
        assert scheduler.pool.cached_keys == blocks


def test_a_request_for_prompt_logprobs_reads_nothing_and_still_stores() -> None:
    """It computes its whole prompt, and the next plain request hits it."""
    scheduler = scheduler_of()
    hit(scheduler, list(range(70)))
    assert hit(scheduler, list(range(70)), reads_cache=False) == (0, 70)
    stored = [event for event in scheduler.take_events() if isinstance(event, BlocksStored)]
    assert [len(event.keys) for event in stored] == [4, 4]
    assert hit(scheduler, list(range(70))) == (64, 70)


def test_fifty_requests_over_one_prompt_hold_it_once() -> None:
    """50 at once over a 250-block prompt hold 250 blocks and a block each for their own tails."""
    scheduler = scheduler_of(num_blocks=400)
    prompt = list(range(4000))
    requests = [ask(scheduler, [*prompt, 10_000 + number], 4) for number in range(50)]
    while any(request.state is State.WAITING for request in requests):
        scheduler.complete(scheduler.schedule(), 0.0)
    assert scheduler.pool.usable_blocks - scheduler.pool.free_blocks == 250 + 50
    assert requests[0].blocks[:250] == requests[49].blocks[:250]
    assert [request.cached_tokens for request in requests] == [0] + [4000] * 49
    finish(scheduler)
    assert scheduler.pool.free_blocks == scheduler.pool.usable_blocks


def test_a_long_prompt_is_computed_and_announced_chunk_by_chunk() -> None:
    """With a budget of 64 tokens a step, 150 tokens take three steps; each announces the blocks it filled."""
    scheduler = scheduler_of(max_num_batched_tokens=64)
    request = ask(scheduler, list(range(150)))
    announced, tokens = [], []
    while scheduler.has_work:
        step = scheduler.schedule()
        tokens.append(step.prefill_tokens)
        scheduler.complete(step, 0.0)
        announced.append([len(event.keys) for event in scheduler.take_events() if isinstance(event, BlocksStored)])
    assert tokens == [64, 64, 22]
    assert announced == [[4], [4], [1]]
    assert request.output_tokens == 1


def test_decoding_goes_on_while_a_long_prompt_is_computed() -> None:
    """Running requests come first: each step has the decoder's token and the rest of the budget for the prompt."""
    scheduler = scheduler_of(max_num_batched_tokens=64)
    decoder = ask(scheduler, list(range(10)), 5)
    scheduler.complete(scheduler.schedule(), 0.0)
    ask(scheduler, list(range(100, 200)))
    step = scheduler.schedule()
    assert (step.tokens, step.prefill_tokens) == (64, 63)
    assert step.work[0][0] is decoder
    scheduler.complete(step, 0.0)
    assert decoder.output_tokens == 2


def test_seats_are_taken_in_the_order_of_arrival() -> None:
    """With two seats the third request waits until one is free, then runs before the fourth."""
    scheduler = scheduler_of(max_num_seqs=2)
    requests = [ask(scheduler, [number] * 20, 3) for number in range(4)]
    scheduler.complete(scheduler.schedule(), 0.0)
    assert [request.state for request in requests] == [State.RUNNING] * 2 + [State.WAITING] * 2
    finish(scheduler)
    firsts = [request.first_token_s for request in requests]
    assert scheduler.counters.finished == {"length": 4}
    assert firsts == sorted(firsts, key=lambda at: at or 0.0)


def test_a_request_is_admitted_only_when_all_of_it_fits() -> None:
    """With 10 blocks, a prompt of 8 waits behind one of 8, though its first chunk would fit."""
    scheduler = scheduler_of(num_blocks=11, max_num_batched_tokens=32)
    ask(scheduler, list(range(128)), 20)
    second = ask(scheduler, list(range(1000, 1128)), 1)
    for _ in range(6):
        scheduler.complete(scheduler.schedule(), 0.0)
        assert second.state is State.WAITING
    finish(scheduler)
    assert second.finish_reason == "length"


def test_the_request_admitted_last_gives_its_blocks_to_the_first_and_starts_over() -> None:
    """When blocks run out the younger is preempted; both still answer in full, and its first hit is what it reports."""
    scheduler = scheduler_of(num_blocks=9)
    older = ask(scheduler, list(range(48)), 60)
    younger = ask(scheduler, list(range(1000, 1048)), 60)
    order: list[Request] = []
    while scheduler.has_work:
        order += [request for request in scheduler.complete(scheduler.schedule(), 0.0) if request.finish_reason]
    assert scheduler.counters.preemptions >= 1
    assert older.preemptions == 0
    assert order == [older, younger]
    assert older.output_tokens == younger.output_tokens == 60
    assert list(younger.output()) == list(range(50_000, 50_060))
    assert younger.cached_tokens == 0
    assert scheduler.counters.prompt_tokens == 96


def test_an_aborted_request_frees_its_blocks_at_once() -> None:
    """Running or waiting, in the middle of a step or not; what it stored stays findable."""
    scheduler = scheduler_of(max_num_seqs=1)
    running = ask(scheduler, list(range(64)), 50)
    waiting = ask(scheduler, list(range(64, 128)), 50)
    step = scheduler.schedule()
    scheduler.abort(running)
    scheduler.abort(waiting)
    scheduler.abort(running)
    assert scheduler.complete(step, 0.0) == []
    assert scheduler.pool.free_blocks == scheduler.pool.usable_blocks
    assert not scheduler.has_work
    assert hit(scheduler, [*range(64), 1, 2]) == (64, 66)
    assert scheduler.counters.finished == {"abort": 2, "length": 1}


def test_a_stop_token_ends_an_answer_but_not_before_min_tokens() -> None:
    """The token 50,002 is the third sampled; it ends the answer unless five are wanted at least."""
    scheduler = scheduler_of()
    stopped = ask(scheduler, [1, 2, 3], 10, stop_token_ids=frozenset({50_002}))
    longer = ask(scheduler, [4, 5, 6], 10, stop_token_ids=frozenset({50_002}), min_tokens=5)
    finish(scheduler)
    assert (stopped.finish_reason, stopped.output_tokens, stopped.stop_token_id) == ("stop", 3, 50_002)
    assert (longer.finish_reason, longer.output_tokens) == ("length", 10)


def test_a_sequence_ends_at_the_models_length() -> None:
    """Prompt and answer together are no longer than max_model_len, and a prompt of that length is refused."""
    scheduler = scheduler_of(max_model_len=40)
    request = ask(scheduler, list(range(30)), 100)
    finish(scheduler)
    assert len(request.token_ids) == 40
    with pytest.raises(ValueError, match="does not fit 40"):
        ask(scheduler, list(range(40)))


def test_without_prefix_caching_nothing_is_found_and_nothing_announced() -> None:
    """The engine computes every prompt whole, and has no events."""
    scheduler = Scheduler(Limits(num_blocks=100, prefix_caching=False), BlockHasher("sha256", 16))
    assert hit(scheduler, list(range(70))) == (0, 70)
    assert hit(scheduler, list(range(70))) == (0, 70)
    assert scheduler.take_events() == []
    assert scheduler.counters.queried_tokens == 0


def test_counters_are_those_of_the_engines_metrics() -> None:
    """Queried and hit tokens count each admitted prompt once."""
    scheduler = scheduler_of()
    hit(scheduler, list(range(70)), 5)
    hit(scheduler, list(range(70)), 5)
    counters = scheduler.counters
    assert (counters.queried_tokens, counters.hit_tokens) == (140, 64)
    assert (counters.prompt_tokens, counters.generated_tokens) == (140, 10)


def test_a_step_takes_its_base_and_its_prompt_tokens_time() -> None:
    """100 uncached prompt tokens at 1,000 a second and 0.02 s a step: 0.12 s, then 0.02 s a token."""
    scheduler = scheduler_of()
    timing = Timing(prefill_tokens_per_s=1000.0, decode_step_s=0.02)
    ask(scheduler, list(range(100)), 3)
    seconds = []
    while scheduler.has_work:
        step = scheduler.schedule()
        seconds.append(timing.step_s(step))
        scheduler.complete(step, 0.0)
    assert seconds == pytest.approx([0.12, 0.02, 0.02])


def test_each_request_beside_the_first_adds_to_a_step() -> None:
    """Three requests of 10 tokens at 1,000 a second, 0.02 s a step and 0.003 s for each further one."""
    scheduler = scheduler_of()
    timing = Timing(prefill_tokens_per_s=1000.0, decode_step_s=0.02, decode_request_s=0.003)
    for begin in (0, 100, 200):
        ask(scheduler, list(range(begin, begin + 10)), 2)
    assert timing.step_s(scheduler.schedule()) == pytest.approx(0.02 + 2 * 0.003 + 0.03)
    assert timing.decoding_s(1) == 0.02
