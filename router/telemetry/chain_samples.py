"""Chains of some of the last requests, to tell which prefixes are hot. Bounded in number and in memory.

Every request offers its chain; about `PER_S` a second are taken, however many come: of a busy router's, every n-th.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

PER_S = 16.0
MAX_SAMPLES = 512
MAX_BLOCKS = 1 << 20
"""Blocks of all samples together, 8 bytes each."""
MAX_STRIDE = 4_096
MAX_AGE_S = 120.0
"""Older ones tell what was hot."""


@dataclass(frozen=True, slots=True)
class ChainSample:
    """One request's chain.

    Attributes:
        model: The name that the client sent.
        block_size: In tokens.
        chain: Block hashes, 64 bits unsigned, from block 0.
        prompt_tokens: Length of the prompt.
        at_s: When the request ended, by the sampler's clock.
    """

    model: str
    block_size: int
    chain: array[int]
    prompt_tokens: int
    at_s: float


class ChainSamples:
    """The last samples.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._samples: deque[ChainSample] = deque()
        self._blocks = 0
        self._stride = 1
        self._skip = 0
        self._taken_s = clock() - 1 / PER_S

    def __len__(self) -> int:
        return len(self._samples)

    def latest(self) -> list[ChainSample]:
        """Return those of the last `MAX_AGE_S` seconds, oldest first."""
        since_s = self._clock() - MAX_AGE_S
        return [sample for sample in self._samples if sample.at_s >= since_s]

    def offer(self, model: str | None, block_size: int, chain: Sequence[int], prompt_tokens: int) -> None:
        """A request ended; most calls only count."""
        if self._skip:
            self._skip -= 1
            return
        now_s = self._clock()
        self._pace(now_s - self._taken_s)
        self._taken_s = now_s
        self._skip = self._stride - 1
        self._add(ChainSample(model or "", block_size, array("Q", chain), prompt_tokens, now_s))

    def _pace(self, since_s: float) -> None:
        """Skip more where samples come faster than wanted, fewer where they come more seldom than half as often."""
        if since_s < 1 / PER_S:
            self._stride = min(2 * self._stride, MAX_STRIDE)
        elif since_s > 2 / PER_S and self._stride > 1:
            self._stride //= 2

    def _add(self, sample: ChainSample) -> None:
        if len(sample.chain) > MAX_BLOCKS:
            return
        self._samples.append(sample)
        self._blocks += len(sample.chain)
        while len(self._samples) > MAX_SAMPLES or self._blocks > MAX_BLOCKS:
            self._blocks -= len(self._samples.popleft().chain)
