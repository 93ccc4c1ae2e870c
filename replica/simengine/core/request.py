"""One sequence of tokens that the engine works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from replica.simengine.core.events import BlockKey, BlocksStored
from replica.simengine.core.hashing import Adapter, BlockHasher, published_extra_keys


class State(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """A prompt, and what has been generated for it.

    Attributes:
        request_id: Unique while the request lives.
        token_ids: Prompt and output so far. Starts as the prompt, which is not copied.
        prompt_tokens: Length of the prompt.
        max_tokens: Output length at which it ends, at least 1.
        next_token: Gives the next output token; called once a token.
        stop_token_ids: A sampled token of these ends the answer.
        min_tokens: Output tokens before which nothing but the length ends it.
        reads_cache: False where the prompt's own log-probabilities are asked: nothing is taken from the cache.
        adapter: Its LoRA adapter.
        salt: Its cache salt; a non-empty string or None.
        keys: Keys of its full blocks as far as tokens are known.
        computed_tokens: Leading tokens whose KV is there, or will be when the step under way ends.
        blocks: The blocks it holds, in the order of its tokens.
        stored_blocks: Leading blocks that are findable.
        quiet_tokens: Up to so many computed tokens nothing happens to its blocks: none is taken, none becomes full.
        cached_tokens: Prompt tokens taken from the cache when it first ran; None before.
        preemptions: How often it lost its blocks.
        finish_reason: "length", "stop" or "abort" once finished.
        stop_token_id: The stop token that ended it.
    """

    request_id: str
    token_ids: list[int]
    max_tokens: int
    next_token: Callable[[], int]
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    reads_cache: bool = True
    adapter: Adapter | None = None
    salt: str | None = None
    arrived_s: float = 0.0
    first_token_s: float | None = None
    state: State = State.WAITING
    keys: list[BlockKey] = field(default_factory=list)
    prompt_tokens: int = 0
    computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    stored_blocks: int = 0
    quiet_tokens: int = 0
    cached_tokens: int | None = None
    preemptions: int = 0
    finish_reason: str | None = None
    stop_token_id: int | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.token_ids)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.prompt_tokens

    def output(self) -> Sequence[int]:
        """Return the tokens generated so far."""
        return self.token_ids[self.prompt_tokens :]

    def hash_blocks(self, hasher: BlockHasher) -> None:
        """Bring `keys` up to the full blocks of `token_ids`; each block is hashed once."""
        if (len(self.keys) + 1) * hasher.block_size <= len(self.token_ids):
            hasher.extend(self.keys, self.token_ids, self.adapter, self.salt)

    def stored_event(self, end_block: int, block_size: int) -> BlocksStored:
        """Return the event for its blocks from `stored_blocks` up to `end_block` (excluded)."""
        start = self.stored_blocks
        return BlocksStored(
            keys=self.keys[start:end_block],
            parent=self.keys[start - 1] if start else None,
            token_ids=self.token_ids[start * block_size : end_block * block_size],
            block_size=block_size,
            lora_name=self.adapter.name if self.adapter else None,
            lora_id=self.adapter.number if self.adapter else None,
            extra_keys=[
                published_extra_keys(self.adapter, self.salt, first=index == 0) for index in range(start, end_block)
            ],
        )
