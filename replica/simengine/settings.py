"""What one simulated engine is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from replica.simengine.core.hashing import Adapter
from replica.simengine.core.scheduler import Limits
from replica.simengine.core.timing import Timing

VERSION = "0.32.0"
"""The vLLM release whose behaviour this follows."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One engine.

    Attributes:
        model: Its root: the name or path the weights would come from.
        served: Names it answers to; the first is the one it gives in answers.
        tokenizer: Folder with tokenizer and chat template.
        limits: Blocks, seats, budget, length.
        timing: Speed, in virtual seconds.
        block_size: Tokens a block.
        algorithm: Hash algorithm of its blocks.
        seed: What it would find in PYTHONHASHSEED; also decides its answers.
        ranks: Data-parallel ranks, each with its own blocks and queue.
        adapters: LoRA adapters, numbered from 1.
        api_key: Bearer token that /v1 asks for.
        time_scale: Virtual seconds that pass in one real second.
        cached_tokens_in_usage: Whether usage has prompt_tokens_details (vLLM: --enable-prompt-tokens-details).
    """

    model: str
    served: tuple[str, ...]
    tokenizer: Path
    limits: Limits
    timing: Timing = field(default_factory=Timing)
    block_size: int = 16
    algorithm: str = "sha256"
    seed: str | None = None
    ranks: int = 1
    adapters: tuple[Adapter, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    time_scale: float = 1.0
    cached_tokens_in_usage: bool = True
    started_unix_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> list[str]:
        """Every model name that may be asked for."""
        return [*self.served, *(adapter.name for adapter in self.adapters)]

    def adapter(self, name: str | None) -> Adapter | None:
        """Return the adapter of that name; None for the base model."""
        return next((each for each in self.adapters if each.name == name), None)
