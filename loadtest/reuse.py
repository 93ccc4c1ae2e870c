"""The hit rate of a run: cached tokens that engines delivered over prompt tokens, added up over all workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReuseTotals:
    """What engines reported so far.

    Attributes:
        prompt_tokens: Of answers that told their cached tokens.
        cached_tokens: Of the same answers.
        answers: How many told.
        untold: Answers without `prompt_tokens_details.cached_tokens` (vLLM: --enable-prompt-tokens-details).
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    answers: int = 0
    untold: int = 0

    def add(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Count one answer; None is what an engine did not tell."""
        if prompt_tokens is None or cached_tokens is None:
            self.untold += 1
            return
        self.answers += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def take(self) -> list[int]:
        """Return the counts as plain numbers and start again from nothing: what a worker reports to its master."""
        counts = [self.prompt_tokens, self.cached_tokens, self.answers, self.untold]
        self.prompt_tokens = self.cached_tokens = self.answers = self.untold = 0
        return counts

    def merge(self, counts: list[int]) -> None:
        """Add what `take` returned elsewhere."""
        self.prompt_tokens += counts[0]
        self.cached_tokens += counts[1]
        self.answers += counts[2]
        self.untold += counts[3]

    def sentence(self) -> str:
        """Tell the hit rate, or why there is none."""
        if not self.answers:
            return f"hit rate: unknown, {self.untold} answers told no cached_tokens"
        rate = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        told = f"{self.cached_tokens:,} cached of {self.prompt_tokens:,} prompt tokens in {self.answers:,} answers"
        return f"hit rate: {rate:.1%} ({told}" + (f"; {self.untold:,} told none)" if self.untold else ")")
