"""Token ids of a prompt, and what a request wants kept of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.request.reasons import Reason
from router.request.trail import Trail


@dataclass(frozen=True, slots=True)
class Keep:
    """A request's truncation.

    Attributes:
        tokens: `truncate_prompt_tokens`: as many are kept, special tokens included; None: all.
        side: `truncation_side`: `left` keeps the last tokens, `right` the first ones, of all with the special ones
            among them. None: the tokenizer's own side, and its special tokens are always kept.
        default_side: The tokenizer's own side: `left` where the engine generates, `right` where it pools.
        known: Hears of the tokens of the text's beginning that were known before, ahead of the work on the rest.
        fresh_bytes: At most so much text (UTF-8) may have to be tokenised anew; None: any amount.
    """

    tokens: int | None = None
    side: str | None = None
    default_side: str = "left"
    known: Callable[[Tokens], None] | None = field(default=None, compare=False)
    fresh_bytes: int | None = field(default=None, compare=False)

    def of(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return what is left of token ids that have no special ones to keep."""
        if self.tokens is None or self.tokens >= len(token_ids):
            return token_ids
        if (self.side or self.default_side) == "right" or self.tokens == 0:
            return token_ids[: self.tokens]
        return token_ids[-self.tokens :]


class TooMuchFreshError(Exception):
    """More text than `Keep.fresh_bytes` would have to be tokenised, or it can't be told how much without waiting."""


ALL = Keep()
"""No truncation."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a text was tokenised to.

    Attributes:
        ids: The token ids; shared with nobody.
        trail: The pieces that they are made of, when all of them are kept; else None.
        stopped: Why the ids end before the prompt does; None when they are all of it.
        estimate: Tokens of the whole prompt, by estimate, when the ids end before it does.
        render_s: What the chat template took.
    """

    ids: Sequence[int]
    trail: Trail | None = None
    stopped: Reason | None = None
    estimate: int = 0
    render_s: float = 0.0
