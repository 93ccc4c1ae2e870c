"""What a simulated fleet is made of, and what its engines tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.tools.simulation.requests import Job


@dataclass(frozen=True, slots=True)
class EngineShape:
    """One replica's size and speed.

    Attributes:
        num_blocks: Blocks of its cache, 1 or more.
        block_tokens: Tokens of a block, 1 or more.
        prefill_tokens_per_s: Prompt tokens that it computes in a second, over 0.
        decode_step_s: Seconds between two tokens of an answer, 0 or more.
        max_running: Requests that it runs at once (batched engines).
        step_tokens: Tokens that it computes in a step at most (batched engines).
        decode_request_s: Seconds that each request beside the first adds to a step, 0 or more (batched engines).
    """

    num_blocks: int
    block_tokens: int
    prefill_tokens_per_s: float = 8_000.0
    decode_step_s: float = 0.025
    max_running: int = 256
    step_tokens: int = 8_192
    decode_request_s: float = 0.0


class Listener(Protocol):
    """Who is told what engines do, as it happens."""

    def stored(self, replica: int, blocks: Sequence[int]) -> None:
        """A replica's cache holds these blocks now."""

    def removed(self, replica: int, blocks: Iterable[int]) -> None:
        """A replica's cache dropped these blocks."""

    def first_token(self, job: Job) -> None:
        """A prompt is computed; `job.cached_tokens` is set."""

    def finished(self, job: Job) -> None:
        """An answer ended."""


class Engine(Protocol):
    """One replica's engine.

    Attributes:
        shape: Its size and speed.
        running: Requests in it, waiting ones too.
        computed_tokens: Prompt tokens that it has computed so far, or was given to compute.
    """

    shape: EngineShape
    running: int
    computed_tokens: int

    def submit(self, job: Job) -> None:
        """Take a request."""

    def held_blocks(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks its cache holds."""

    def remaining_tokens(self) -> float:
        """Return the prompt tokens that it has yet to compute: what no router can know exactly."""

    def used_share(self) -> float:
        """Return the share of its cache that requests hold, 0 to 1: what engines report as KV cache usage."""

    def waiting(self) -> int:
        """Return how many of its requests have not begun."""

    def stop(self) -> list[Job]:
        """End it; return the requests that it did not answer to the end. It does nothing any more."""
