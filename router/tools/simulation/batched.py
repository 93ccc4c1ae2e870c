"""An engine of continuous batching: the simulated engine's core (`replica/simengine/core`) in virtual time.

The same scheduler, block pool and step times that stand behind `warmroute simengine`; only the blocks' names are given
instead of hashed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from replica.simengine.core.block_pool import BlockPool
from replica.simengine.core.events import BlockRemoved, BlocksStored
from replica.simengine.core.hashing import BlockHasher
from replica.simengine.core.request import Request, State
from replica.simengine.core.scheduler import Limits, Scheduler, Step
from replica.simengine.core.steady import SteadyRun
from replica.simengine.core.timing import Timing
from router.tools.simulation.engine import EngineShape, Listener
from router.tools.simulation.requests import Job
from router.tools.simulation.timeline import BEGIN, Timeline

UNLIMITED_TOKENS = 2**40
KEY_BYTES = 8
"""Keys of named blocks have this length; those of other answers are longer."""


@dataclass(eq=False, slots=True)
class _NamedRequest(Request):
    """A sequence whose blocks have names already.

    Attributes:
        names: Of all whole blocks of prompt and answer.
        job: What it is in the simulation.
    """

    names: Sequence[bytes] = ()
    job: Job | None = None

    def hash_blocks(self, hasher: BlockHasher) -> None:
        """Bring `keys` up to the full blocks of `token_ids`."""
        full_blocks = len(self.token_ids) // hasher.block_size
        if len(self.keys) < full_blocks:
            self.keys.extend(self.names[len(self.keys) : full_blocks])

    def stored_event(self, end_block: int, block_size: int) -> BlocksStored:
        """Return the event for its blocks up to `end_block`: names alone, nobody reads the rest."""
        return BlocksStored(self.keys[self.stored_blocks : end_block], None, [], block_size, None, None, [])


class _Run:
    """Steps that only decode, and when they begin. Times are added up step by step, as without it.

    Attributes:
        planned: The step in whose beginning the engine acts next.
    """

    def __init__(self, steps: SteadyRun, begin_s: float, step_s: float) -> None:
        self.steps = steps
        self.planned = 0
        self._times = [begin_s]
        self._step_s = step_s

    def begins_s(self, step: int) -> float:
        """Return when a step begins."""
        times = self._times
        while len(times) <= step:
            times.append(times[-1] + self._step_s)
        return times[step]

    def first_after(self, now_s: float) -> int:
        """Return the first step that begins after this moment."""
        while self._times[-1] <= now_s:
            self.begins_s(len(self._times))
        return bisect_right(self._times, now_s)


class BatchedEngine:
    """See `Engine`."""

    def __init__(self, replica: int, shape: EngineShape, timeline: Timeline, listener: Listener) -> None:
        self.shape = shape
        self.running = 0
        self.computed_tokens = 0
        self._replica = replica
        self._timeline = timeline
        self._listener = listener
        self._block_tokens = shape.block_tokens
        self._timing = Timing(shape.prefill_tokens_per_s, shape.decode_step_s, shape.decode_request_s)
        limits = Limits(
            num_blocks=shape.num_blocks + 1,  # one is a placeholder
            max_num_seqs=shape.max_running,
            max_num_batched_tokens=shape.step_tokens,
            max_model_len=UNLIMITED_TOKENS,
        )
        self._scheduler = Scheduler(limits, BlockHasher("sha256_cbor", shape.block_tokens))
        self._stepping = False
        self._stopped = False
        self._requests: dict[Job, _NamedRequest] = {}
        self._run: _Run | None = None
        self._left: float | None = None

    @property
    def pool(self) -> BlockPool:
        """Its blocks, to look at."""
        return self._scheduler.pool

    def submit(self, job: Job) -> None:
        """See `Engine`.

        Raises:
            ValueError: It does not fit into the cache.
        """
        turn = job.turn
        whole = turn.prompt_tokens // self._block_tokens
        names = [*_keys(turn.blocks)[:whole], *map(_key, turn.answer_blocks)]
        answers = (turn.prompt_tokens + turn.output_tokens) // self._block_tokens - len(names)
        names += [b"answer %d/%d" % (job.number, index) for index in range(answers)]
        request = _NamedRequest(
            str(job.number), [0] * turn.prompt_tokens, turn.output_tokens, _any_token, names=names, job=job
        )
        self._requests[job] = request
        self.running += 1
        self._scheduler.add(request, self._timeline.now_s)
        self._left = None
        if self._run is not None:
            self._cut(self._run)
        if not self._stepping:
            self._stepping = True
            # The first of a burst does not run ahead: all that comes at this moment is in the first step.
            self._timeline.at(self._timeline.now_s, self._step, who=BEGIN)

    def held_blocks(self, blocks: Sequence[int]) -> int:
        """See `Engine`."""
        return len(self._scheduler.pool.lookup(_keys(blocks), len(blocks)))

    def remaining_tokens(self) -> float:
        """See `Engine`. Of those that wait: what the cache does not hold of them by now."""
        if self._left is None:
            self._left = float(sum(map(self._uncomputed_tokens, self._requests.values())))
        return self._left

    def used_share(self) -> float:
        """See `Engine`."""
        return self._scheduler.pool.usage_share

    def waiting(self) -> int:
        """See `Engine`."""
        return len(self._scheduler.waiting)

    def _uncomputed_tokens(self, request: _NamedRequest) -> int:
        if request.first_token_s is not None:
            return 0
        computed = request.computed_tokens
        if request.state is State.WAITING:
            most = (request.prompt_tokens - 1) // self._block_tokens
            computed = len(self._scheduler.pool.lookup(request.keys, most)) * self._block_tokens
        return request.prompt_tokens - computed

    def stop(self) -> list[Job]:
        """See `Engine`."""
        self._stopped = True
        left = list(self._requests)
        self._requests.clear()
        self.running = 0
        return left

    def _step(self, *, alone: bool = False) -> None:
        """Begin what comes next: a step, or many as one unless this one is to be made `alone`."""
        if self._stopped:
            return
        self._left = None
        run = self._scheduler.steady_run() if self._timing.decode_step_s > 0 and not alone else None
        if run is not None:
            self._run_steadily(run)
            return
        step = self._scheduler.schedule()
        self._tell()
        if not step.work:
            self._stepping = False
            return
        self.computed_tokens += step.prefill_tokens
        self._timeline.at(self._timeline.now_s + self._timing.step_s(step), self._complete, step)

    def _complete(self, step: Step) -> None:
        if self._stopped:
            return
        now_s = self._timeline.now_s
        for request in self._scheduler.complete(step, now_s):
            assert isinstance(request, _NamedRequest)  # noqa: S101 - for the type alone
            job = request.job
            assert job is not None  # noqa: S101 - for the type alone
            if request.output_tokens == 1:
                job.cached_tokens = request.cached_tokens
                self._listener.first_token(job)
            if request.finish_reason is not None:
                del self._requests[job]
                self.running -= 1
                self._listener.finished(job)
        self._step()

    def _run_steadily(self, run: SteadyRun) -> None:
        """Take steps that only decode as one, until a request comes."""
        step_s = self._timing.decoding_s(len(self._scheduler.running))
        self._run = _Run(run, self._timeline.now_s, step_s)
        self._plan_run(self._run)

    def _plan_run(self, run: _Run) -> None:
        run.planned = step = run.steps.next_change
        self._timeline.at(run.begins_s(step), self._go_on, run, step)

    def _go_on(self, run: _Run, step: int) -> None:
        """A step begins, in which something happens, or with which the run has ended."""
        if self._run is not run or step != run.planned or self._stopped:
            return
        if step < run.steps.steps and run.steps.change(step):
            self._tell()
            self._plan_run(run)
            return
        self._run = None
        self._scheduler.end_run(run.steps, step)
        self._step(alone=step < run.steps.steps)

    def _cut(self, run: _Run) -> None:
        """A request came: the run ends with the step that is under way."""
        ends = run.first_after(self._timeline.now_s)
        if ends < run.steps.steps:
            run.steps.steps = ends
            if run.planned > ends:
                self._plan_run(run)

    def _tell(self) -> None:
        """Pass on what was stored and evicted, in order; what was evicted in a row as one."""
        removed: list[int] = []
        for event in self._scheduler.take_events():
            if isinstance(event, BlockRemoved):
                if (name := _name(event.key)) is not None:
                    removed.append(name)
                continue
            if removed:
                self._listener.removed(self._replica, removed)
                removed = []
            if isinstance(event, BlocksStored):
                self._listener.stored(self._replica, [name for name in map(_name, event.keys) if name is not None])
        if removed:
            self._listener.removed(self._replica, removed)


@lru_cache(maxsize=32)
def _keys(blocks: Sequence[int]) -> list[bytes]:
    """Return the keys of blocks: all engines are asked about the same prompt, one after the other."""
    return [_key(name) for name in blocks]


def _key(name: int) -> bytes:
    return name.to_bytes(KEY_BYTES, "big")


def _name(key: bytes) -> int | None:
    """Return what a block is called in the trace; None for one that no prompt will ever ask for."""
    return int.from_bytes(key, "big") if len(key) == KEY_BYTES else None


def _any_token() -> int:
    return 0
