"""What a tokenizer must be able to do for this package, whichever library it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenizerError(Exception):
    """A tokenizer can't be used; the message says what is missing and what to do, in one line."""


@dataclass(frozen=True, slots=True)
class Added:
    """The ids that a tokenizer puts around a text when it is asked to add its special tokens."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class TextEncoder(Protocol):
    """Turns text into token ids. Safe to use from several threads.

    Attributes:
        added: What `add_special_tokens` adds; None when that is not the same for every text.
        sure_tokens: Texts at whose start any text may be cut, and its parts tokenised one by one, with the same ids as
            the whole: see `router.request.encoders.cutting`. Empty when that can't be proven.
    """

    added: Added | None
    sure_tokens: tuple[str, ...]

    def normalised(self, text: str) -> str:
        """Return the text as the tokenizer sees it before it looks for special tokens."""

    def encode(self, pieces: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the ids of each piece, without added special tokens.

        Args:
            pieces: Normalised texts; each is tokenised by itself.

        Raises:
            NotUnderstoodError: TOKENIZER_ERROR.
        """
