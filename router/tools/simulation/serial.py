"""An engine that computes one prompt after the other: the model behind published simulations of prefix routing.

First in, first out, at a fixed speed. A request's blocks are in the cache from the moment it is dispatched, the deepest
touched first, so that it is the first to be evicted. A partial last block counts like a whole one. Of a prompt at least
one token is computed. Answers take a fixed time a token, slow nobody down and leave no blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from router.tools.simulation.engine import EngineShape, Listener
from router.tools.simulation.requests import Job
from router.tools.simulation.timeline import Timeline


class SerialEngine:
    """See `Engine`."""

    def __init__(self, replica: int, shape: EngineShape, timeline: Timeline, listener: Listener) -> None:
        self.shape = shape
        self.running = 0
        self.computed_tokens = 0
        self._replica = replica
        self._timeline = timeline
        self._listener = listener
        self._held: OrderedDict[int, None] = OrderedDict()
        self._jobs: dict[Job, None] = {}
        self._free_s = 0.0
        self._used_tokens = 0
        self._waiting = 0

    def submit(self, job: Job) -> None:
        """See `Engine`."""
        turn, shape, now_s = job.turn, self.shape, self._timeline.now_s
        cached = min(turn.prompt_tokens, self.held_blocks(turn.blocks) * shape.block_tokens)
        uncached = max(1, turn.prompt_tokens - cached)
        job.cached_tokens = cached
        self._keep(turn.blocks)
        self.running += 1
        self.computed_tokens += uncached
        self._jobs[job] = None
        self._used_tokens += turn.prompt_tokens
        self._waiting += 1
        self._free_s = max(self._free_s, now_s) + uncached / shape.prefill_tokens_per_s
        self._timeline.at(self._free_s, self._computed, job)

    def held_blocks(self, blocks: Sequence[int]) -> int:
        """See `Engine`."""
        held, count = self._held, 0
        for count, block in enumerate(blocks):
            if block not in held:
                return count
        return count + 1 if blocks else 0

    def remaining_tokens(self) -> float:
        """See `Engine`."""
        return max(0.0, self._free_s - self._timeline.now_s) * self.shape.prefill_tokens_per_s

    def used_share(self) -> float:
        """See `Engine`: what requests hold is not kept from being evicted here, but it is told."""
        return min(1.0, self._used_tokens / (self.shape.num_blocks * self.shape.block_tokens))

    def waiting(self) -> int:
        """See `Engine`."""
        return self._waiting

    def stop(self) -> list[Job]:
        """See `Engine`."""
        left = list(self._jobs)
        self._jobs.clear()
        self._held.clear()
        self.running = self._waiting = self._used_tokens = 0
        return left

    def _keep(self, blocks: Sequence[int]) -> None:
        held = self._held
        new = [block for block in blocks if block not in held]
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        evicted = [held.popitem(last=False)[0] for _ in range(len(held) - self.shape.num_blocks)]
        if new:
            self._listener.stored(self._replica, new)
        if evicted:
            self._listener.removed(self._replica, evicted)

    def _computed(self, job: Job) -> None:
        if job not in self._jobs:
            return
        self._waiting -= 1
        self._listener.first_token(job)
        self._timeline.at(self._timeline.now_s + job.turn.output_tokens * self.shape.decode_step_s, self._ended, job)

    def _ended(self, job: Job) -> None:
        if self._jobs.pop(job, self) is self:
            return
        self.running -= 1
        self._used_tokens -= job.turn.prompt_tokens
        self._listener.finished(job)
