"""What came of a run: one row a policy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from router.tools.simulation.requests import Job
from router.tools.simulation.run import Run


@dataclass(frozen=True, slots=True)
class Objective:
    """When a request was served well.

    Attributes:
        ttft_s: Seconds to its first token, at most.
        itl_s: Mean seconds between its tokens, at most.
    """

    ttft_s: float = 2.0
    itl_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's figures.

    Attributes:
        hit_rate: Blocks hit over blocks asked, 0 to 1.
        ttft_p50_s, ttft_p90_s, ttft_p99_s: Seconds to the first token.
        imbalance: Prompt tokens that the busiest replica computed over the mean; 1 is even.
        output_tokens_per_s: Answer tokens over the time from the first arrival to the last token.
        goodput_share: Requests that met the objective, of all.
        computed_tokens: Prompt tokens that the fleet computed.
        queue_s: Seconds of prefill that wait before a replica, on the mean: what autoscaling looks at.
    """

    policy: str
    requests: int
    hit_rate: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    imbalance: float
    output_tokens_per_s: float
    goodput_share: float
    computed_tokens: int
    queue_s: float = 0.0

    def to_dict(self) -> dict[str, float | int | str]:
        """Return it for JSON."""
        return {
            name: round(value, 4) if isinstance(value := getattr(self, name), float) else value
            for name in self.__slots__
        }


def row_of(policy: str, run: Run, block_tokens: int, objective: Objective) -> Row:
    """Sum up a run that has ended."""
    jobs = [job for job in run.jobs if job.first_token_s is not None]
    asked = sum(len(job.turn.blocks) for job in jobs)
    hit = sum(-(-(job.cached_tokens or 0) // block_tokens) for job in jobs)
    ttfts = sorted(job.ttft_s for job in jobs if job.ttft_s is not None)
    computed = list(run.computed_tokens.values())
    elapsed_s = max((job.finished_s or 0.0 for job in jobs), default=0.0) - min(
        (job.arrived_s for job in jobs), default=0.0
    )
    return Row(
        policy=policy,
        requests=len(jobs),
        hit_rate=hit / asked if asked else 0.0,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p90_s=percentile(ttfts, 0.9),
        ttft_p99_s=percentile(ttfts, 0.99),
        imbalance=max(computed) * len(computed) / total if (total := sum(computed)) else 1.0,
        output_tokens_per_s=sum(job.turn.output_tokens for job in jobs) / elapsed_s if elapsed_s > 0 else 0.0,
        goodput_share=sum(_is_good(job, objective) for job in jobs) / len(jobs) if jobs else 0.0,
        computed_tokens=total,
        queue_s=run.queue_s / len(run.jobs) if run.jobs else 0.0,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of an ordered sequence is not over; 0 of an empty one."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def shared_cache_hit_rate(asked: Iterable[tuple[int, ...]], num_blocks: int) -> float:
    """Return what one LRU as large as the fleet's caches together hits: the bound, in blocks hit over blocks asked."""
    held: OrderedDict[int, None] = OrderedDict()
    hit = count = 0
    for blocks in asked:
        count += len(blocks)
        hit += next((depth for depth, block in enumerate(blocks) if block not in held), len(blocks))
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > num_blocks:
            held.popitem(last=False)
    return hit / count if count else 0.0


def _is_good(job: Job, objective: Objective) -> bool:
    ttft_s = job.ttft_s
    if ttft_s is None or job.finished_s is None or job.first_token_s is None or ttft_s > objective.ttft_s:
        return False
    gaps = job.turn.output_tokens - 1
    return gaps < 1 or (job.finished_s - job.first_token_s) / gaps <= objective.itl_s
