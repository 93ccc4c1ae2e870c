"""Continuous batching: which tokens of which requests the next step computes.

There is no prefill phase and no decode phase. Each request has tokens and computed tokens, and a step lets the second
catch up with the first within a budget of tokens:

1. Running requests first, in the order in which they were admitted. A request that finds no block for its next tokens
   takes those of the request admitted last, which goes back to the head of the queue and starts over (its blocks stay
   cached until they are reused, so most of it is a cache hit).
2. Then the queue, first come first served, unless someone was just preempted: the head is admitted when there is
   budget, a free seat, and room for the whole of it. What the cache holds is not computed again, save the last token,
   without which there would be nothing to sample from.

A block becomes findable when the step that fills it is scheduled, so an equal request in the same step already hits it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from replica.simengine.core.block_pool import BlockPool
from replica.simengine.core.events import CacheEvent
from replica.simengine.core.hashing import BlockHasher
from replica.simengine.core.request import Request, State
from replica.simengine.core.steady import SteadyRun


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine can hold and do.

    Attributes:
        num_blocks: Blocks, the placeholder included.
        max_num_seqs: Requests that run at once.
        max_num_batched_tokens: Tokens a step computes at most.
        max_model_len: Tokens of a sequence, prompt and output.
        prefix_caching: Whether blocks are kept and found.
        announces: Whether events are collected.
    """

    num_blocks: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    prefix_caching: bool = True
    announces: bool = True


@dataclass(slots=True)
class Step:
    """One forward pass: (request, tokens it computes) in order, and how many of them are prompt tokens."""

    work: list[tuple[Request, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Counters:
    """Totals since the start, as the engine's metrics count them (tokens; preempted admissions are left out)."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)


class Scheduler:
    """One engine's queue, running batch and blocks.

    Attributes:
        max_model_len: Tokens of a sequence: as the limits say, and no more than all blocks together hold.
    """

    def __init__(self, limits: Limits, hasher: BlockHasher) -> None:
        self.limits = limits
        self.hasher = hasher
        self.block_size = hasher.block_size
        self.pool = BlockPool(limits.num_blocks)
        self.max_model_len = min(limits.max_model_len, self.pool.usable_blocks * hasher.block_size)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.counters = Counters()
        self._steady = False

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self.running or self.waiting)

    def add(self, request: Request, now_s: float) -> None:
        """Queue a request. Its prompt is hashed here, once.

        Raises:
            ValueError: It could never run: longer than the model or than all blocks together.
        """
        if not 0 < request.prompt_tokens < self.max_model_len:
            raise ValueError(f"a prompt of {request.prompt_tokens} tokens does not fit {self.max_model_len}")
        request.arrived_s = now_s
        if self.limits.prefix_caching:
            request.hash_blocks(self.hasher)
        self._steady = False
        self.waiting.append(request)

    def abort(self, request: Request, reason: str = "abort") -> None:
        """Take a request out, wherever it stands. One that has finished is left alone."""
        if request.state is State.FINISHED:
            return
        if request.state is State.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, reason)

    def schedule(self) -> Step:
        """Choose the next step's work and take the blocks for it. The step may be empty."""
        step = Step()
        budget = self.limits.max_num_batched_tokens
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = len(request.token_ids) - request.computed_tokens
            if count == 1 and request.prompt_tokens <= request.computed_tokens < request.quiet_tokens:
                # As nearly always: a token of an answer, within the blocks that are there.
                budget -= 1
                request.computed_tokens += 1
                step.work.append((request, 1))
                step.tokens += 1
                index += 1
                continue
            count = min(count, budget)
            while not self._grow(request, count):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    break
            if request.state is not State.RUNNING:
                break
            budget -= count
            self._compute(step, request, count)
            index += 1
        if not preempted:
            self._admit(step, budget)
        self._steady = not preempted and step.prefill_tokens == 0 and len(step.work) == len(self.running)
        return step

    def complete(self, step: Step, now_s: float) -> list[Request]:
        """End a step: each request that has caught up gets its next token.

        Returns:
            The requests that got one, in order; the token is the last of `token_ids`. Finished ones are freed.
        """
        advanced = []
        running, block_size, hashes = State.RUNNING, self.block_size, self.limits.prefix_caching
        for request, _ in step.work:
            tokens = request.token_ids
            if request.state is not running or request.computed_tokens < len(tokens):
                continue
            tokens.append(request.next_token())
            if request.first_token_s is None:
                request.first_token_s = now_s
            length = len(tokens)
            if hashes and length % block_size == 0:
                request.hash_blocks(self.hasher)
            if (
                request.stop_token_ids
                or length - request.prompt_tokens >= request.max_tokens
                or length >= self.max_model_len
            ):
                reason = self._end_of(request)
                if reason is not None:
                    self.running.remove(request)
                    self._finish(request, reason)
            advanced.append(request)
        self.counters.generated_tokens += len(advanced)
        return advanced

    def steady_run(self) -> SteadyRun | None:
        """Return the next steps as one, as far as they do nothing but decode; None where that can't be told.

        Whoever takes it calls `end_run` before anything else is asked of the scheduler but `add`.
        """
        if not self._steady or not self.running:
            return None
        steps = self.max_model_len
        for request in self.running:
            if request.stop_token_ids:
                return None
            length = len(request.token_ids)
            steps = min(
                steps, request.max_tokens - (length - request.prompt_tokens) - 1, self.max_model_len - length - 1
            )
        if steps < 1:
            return None
        run = SteadyRun(self.running, steps, self._grow, self._settle)
        if self.waiting:
            run.steps = run.next_change  # what is stored then may be just what the head of the queue needs
        return run if run.steps > 0 else None

    def end_run(self, run: SteadyRun, steps: int) -> None:
        """So many steps of a run were carried out."""
        self.counters.generated_tokens += run.end(steps)

    def _settle(self, request: Request, computed_tokens: int) -> None:
        request.computed_tokens = computed_tokens
        tokens = request.token_ids
        tokens.extend([request.next_token() for _ in range(computed_tokens + 1 - len(tokens))])
        if self.limits.prefix_caching:
            request.hash_blocks(self.hasher)

    def take_events(self) -> list[CacheEvent]:
        """Return what was stored and evicted since the last call, in order."""
        events = self.pool.take_events()
        return events if self.limits.announces and self.limits.prefix_caching else []

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False while any request holds blocks."""
        return self.pool.reset()

    def _admit(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            total = len(request.token_ids)
            cached: list[int] = []
            if request.reads_cache and self.limits.prefix_caching:
                cached = self.pool.lookup(request.keys, (total - 1) // self.block_size)
            needed = -(-total // self.block_size) - len(cached) + self.pool.unreferenced(cached)
            if needed > self.pool.free_blocks:
                return
            self.waiting.popleft()
            hit_tokens = len(cached) * self.block_size
            self._count_admission(request, hit_tokens)
            self.pool.hold(cached)
            request.blocks = cached
            request.stored_blocks = len(cached)
            request.computed_tokens = hit_tokens
            request.state = State.RUNNING
            self.running.append(request)
            count = min(total - hit_tokens, budget)
            self._grow(request, count)
            budget -= count
            self._compute(step, request, count)

    def _count_admission(self, request: Request, hit_tokens: int) -> None:
        if request.preemptions:
            return
        request.cached_tokens = hit_tokens
        self.counters.prompt_tokens += request.prompt_tokens
        if request.reads_cache and self.limits.prefix_caching:
            self.counters.queried_tokens += request.prompt_tokens
            self.counters.hit_tokens += hit_tokens

    def _grow(self, request: Request, count: int) -> bool:
        """Give a request the blocks for its next tokens and store those that become full; False if there are none."""
        end = request.computed_tokens + count
        missing = -(-end // self.block_size) - len(request.blocks)
        if missing > self.pool.free_blocks:
            return False
        if missing > 0:
            request.blocks.extend(self.pool.allocate(missing))
        full = end // self.block_size
        if full > request.stored_blocks and self.limits.prefix_caching:
            start = request.stored_blocks
            event = request.stored_event(full, self.block_size) if self.limits.announces else None
            self.pool.store(request.blocks[start:full], request.keys[start:full], event)
            request.stored_blocks = full
        request.quiet_tokens = len(request.blocks) * self.block_size
        if self.limits.prefix_caching:
            request.quiet_tokens = min(request.quiet_tokens, (request.stored_blocks + 1) * self.block_size - 1)
        return True

    def _compute(self, step: Step, request: Request, count: int) -> None:
        decodes = count == 1 and request.output_tokens > 0 and request.computed_tokens + 1 == len(request.token_ids)
        request.computed_tokens += count
        step.work.append((request, count))
        step.tokens += count
        if not decodes:
            step.prefill_tokens += count

    def _preempt(self, request: Request) -> None:
        self._free(request)
        request.state = State.WAITING
        request.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def _end_of(self, request: Request) -> str | None:
        if request.output_tokens >= request.min_tokens and request.token_ids[-1] in request.stop_token_ids:
            request.stop_token_id = request.token_ids[-1]
            return "stop"
        if request.output_tokens >= request.max_tokens or len(request.token_ids) >= self.max_model_len:
            return "length"
        return None

    def _finish(self, request: Request, reason: str) -> None:
        self._steady = False
        self._free(request)
        request.state = State.FINISHED
        request.finish_reason = reason
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1

    def _free(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.stored_blocks = 0
        request.computed_tokens = 0
        request.quiet_tokens = 0
