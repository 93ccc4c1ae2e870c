"""Sessions that replay a recorded trace: prompts of its lengths, which share what its prompts shared.

A block's name seeds its text, so equal names are equal texts, and equal leading names are a shared prefix of whole
blocks. Templates put a few tokens around a prompt; they are taken off its end, so that a request has as many tokens at
the engine as the trace says.
"""

from __future__ import annotations

import random
from functools import lru_cache

from loadtest.workloads.conversations import Kind, Maker, Session, Turn
from loadtest.workloads.mooncake import TraceRequest

CACHED_TEXTS = 20_000


class Replay:
    """Makes sessions of a trace's requests."""

    def __init__(self, maker: Maker, seed: int, block_tokens: int, template_tokens: int = 0, shrink: int = 1) -> None:
        """Describe how prompts are made.

        Args:
            template_tokens: What the chat template adds to a prompt of one user's message.
            shrink: 1 or more, a divisor of `block_tokens`: prompts, blocks and answers are that many times shorter.

        Raises:
            ValueError: `shrink` does not divide the blocks.
        """
        if shrink < 1 or block_tokens % shrink:
            raise ValueError(f"blocks of {block_tokens} tokens can't be shrunk by {shrink}: name a divisor")
        self._maker = maker
        self._seed = seed
        self._block_tokens = block_tokens // shrink
        self._template_tokens = template_tokens
        self._shrink = shrink
        self._block = lru_cache(maxsize=CACHED_TEXTS)(self._make_block)

    def session(self, number: int, request: TraceRequest) -> Session:
        """Return one request as a session of one turn."""
        left = max(1, -(-request.prompt_tokens // self._shrink) - self._template_tokens)
        texts = []
        for name in request.blocks:
            # A recorder may name whole blocks only; what follows them is this request's own.
            tokens = min(left, self._block_tokens)
            if tokens <= 0:
                break
            texts.append(self._block(name, tokens))
            left -= tokens
        if left > 0:
            texts.append(self._maker.make(left, random.Random(f"{self._seed}/rest/{number}")))
        answer_tokens = max(1, request.answer_tokens // self._shrink)
        turn = Turn(text=" ".join(texts), answer_tokens=answer_tokens, think_s=0.0)
        return Session(f"trace-{number}", Kind.TRACE, "", (turn,), remembers=False)

    def _make_block(self, name: int, tokens: int) -> str:
        return self._maker.make(tokens, random.Random(f"{self._seed}/block/{name}"))
