"""What the simulated engine's own core makes of the same traffic, in virtual time, with a model's speeds."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from loadtest.calibrate.measure import Ask, Timed
from loadtest.calibrate.model import Model
from replica.simengine.core.hashing import BlockHasher
from replica.simengine.core.request import Request
from replica.simengine.core.scheduler import Limits, Scheduler
from replica.simengine.core.timing import Timing

BLOCK_TOKENS = 16
BLOCKS = 2**20
"""Nothing is ever evicted."""


@dataclass(frozen=True, slots=True)
class Error:
    """A measure of the traffic, as it was and as it was predicted (seconds)."""

    name: str
    measured_s: float
    predicted_s: float

    @property
    def share(self) -> float:
        """By how much the prediction is off: 0.1 is 10% too long."""
        return self.predicted_s / self.measured_s - 1


def predict(model: Model, asked: Sequence[Sequence[Ask]], step_tokens: int) -> list[Timed]:
    """Let users ask one request after the other; return the times, in no order."""
    limits = Limits(BLOCKS, max_num_batched_tokens=step_tokens, max_model_len=2**30, prefix_caching=False)
    scheduler = Scheduler(limits, BlockHasher("sha256_cbor", BLOCK_TOKENS))
    timing = Timing(model.prefill_tokens_per_s, model.decode_step_s, model.decode_request_s)
    users: list[Iterator[Ask]] = [iter(requests) for requests in asked]
    due = [(model.request_s, number) for number in range(len(users))]
    heapq.heapify(due)
    owners: dict[Request, int] = {}
    found: list[Timed] = []
    now_s = 0.0
    while due or scheduler.has_work:
        if not scheduler.has_work:
            now_s = max(now_s, due[0][0])
        while due and due[0][0] <= now_s:
            arrived_s, number = heapq.heappop(due)
            ask = next(users[number], None)
            if ask is not None:
                request = Request(str(number), [0] * ask.prompt_tokens, ask.output_tokens, lambda: 0)
                scheduler.add(request, arrived_s)
                owners[request] = number
        if not scheduler.has_work:
            continue
        step = scheduler.schedule()
        now_s += timing.step_s(step)
        for request in scheduler.complete(step, now_s):
            if request.finish_reason is not None and request.first_token_s is not None:
                sent_s = request.arrived_s - model.request_s
                found.append(Timed(request.first_token_s - sent_s, now_s - sent_s, ()))
                heapq.heappush(due, (now_s + model.request_s, owners.pop(request)))
    return found


def errors(measured: Sequence[Timed], predicted: Sequence[Timed]) -> list[Error]:
    """Compare the two, measure by measure."""
    rows = (
        ("TTFT, median", median, "ttft_s"),
        ("TTFT, mean", mean, "ttft_s"),
        ("whole answer, median", median, "total_s"),
        ("whole answer, mean", mean, "total_s"),
    )
    return [
        Error(name, of([getattr(each, what) for each in measured]), of([getattr(each, what) for each in predicted]))
        for name, of, what in rows
    ]
