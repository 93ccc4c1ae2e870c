"""An engine of continuous batching: the simulated engine's core (`replica/simengine/core`) in virtual time.

The same scheduler, block pool and step times that stand behind `warmroute simengine`; only the blocks' names are given
instead of hashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replica.simengine.core.block_pool import BlockPool
from replica.simengine.core.events import BlockRemoved, BlocksStored
from replica.simengine.core.hashing import BlockHasher
from replica.simengine.core.request import Request
from replica.simengine.core.scheduler import Limits, Scheduler, Step
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
        self._timing = Timing(shape.prefill_tokens_per_s, shape.decode_step_s)
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
        names = [_key(name) for name in (*turn.blocks[:whole], *turn.answer_blocks)]
        answers = (turn.prompt_tokens + turn.output_tokens) // self._block_tokens - len(names)
        names += [b"answer %d/%d" % (job.number, index) for index in range(answers)]
        request = _NamedRequest(
            str(job.number), [0] * turn.prompt_tokens, turn.output_tokens, _any_token, names=names, job=job
        )
        self._requests[job] = request
        self.running += 1
        self._scheduler.add(request, self._timeline.now_s)
        if not self._stepping:
            self._stepping = True
            # The first of a burst does not run ahead: all that comes at this moment is in the first step.
            self._timeline.at(self._timeline.now_s, self._step, who=BEGIN)

    def held_blocks(self, blocks: Sequence[int]) -> int:
        """See `Engine`."""
        return len(self._scheduler.pool.lookup([_key(name) for name in blocks], len(blocks)))

    def remaining_tokens(self) -> float:
        """See `Engine`."""
        left = 0
        for request in self._requests.values():
            left += max(0, request.prompt_tokens - request.computed_tokens) if request.first_token_s is None else 0
        return float(left)

    def stop(self) -> list[Job]:
        """See `Engine`."""
        self._stopped = True
        left = list(self._requests)
        self._requests.clear()
        self.running = 0
        return left

    def _step(self) -> None:
        if self._stopped:
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

    def _tell(self) -> None:
        for event in self._scheduler.take_events():
            if isinstance(event, BlocksStored):
                self._listener.stored(self._replica, [name for name in map(_name, event.keys) if name is not None])
            elif isinstance(event, BlockRemoved):
                name = _name(event.key)
                if name is not None:
                    self._listener.removed(self._replica, [name])


def _key(name: int) -> bytes:
    return name.to_bytes(KEY_BYTES, "big")


def _name(key: bytes) -> int | None:
    """Return what a block is called in the trace; None for one that no prompt will ever ask for."""
    return int.from_bytes(key, "big") if len(key) == KEY_BYTES else None


def _any_token() -> int:
    return 0
