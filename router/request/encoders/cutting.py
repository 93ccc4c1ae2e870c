"""Where a text may be cut so that its parts, tokenised one by one, give the ids of the whole.

Tokenizers look for their added tokens (`<|im_start|>` and the like) before anything else, and treat the text between
two of them by itself. So a text may be cut in front of such a token, if it is certain that the tokenizer would take it
for that token there. Two things could keep it from that, and a token that they can happen to is never cut at:

- Another added token covers its beginning. Then that one's end is this one's beginning, or it holds this one whole.
  (A longer token that begins at the same place holds it whole, too.)
- It is only taken under a condition on its neighbours, or takes spaces before it.

The token stays with the text after it: so a rule for the very start of a prompt is not taken for the start of a piece.
"""

from __future__ import annotations

from collections.abc import Iterable

MIN_PIECE_CHARS = 128
"""Shorter pieces are joined with the next one: to look them up would cost as much as to tokenise them."""


def never_covered(token: str, added_tokens: Iterable[str]) -> bool:
    """Whether no added token (the token itself included) can cover the beginning of `token` in any text."""
    return bool(token) and not any(
        (other != token and token in other) or _ends_in_a_beginning(other, token) for other in added_tokens
    )


def _ends_in_a_beginning(other: str, token: str) -> bool:
    """Whether a proper end of `other` is a beginning of `token`."""
    return any(token.startswith(other[place:]) for place in range(max(1, len(other) - len(token) + 1), len(other)))


class Cutter:
    """Cuts texts into pieces. Where it cuts depends on the text before alone, so a longer text gives the same pieces
    but for its last ones.
    """

    def __init__(self, token: str | None) -> None:
        """Cut in front of this token; without one, a text is one piece."""
        self._token = token

    def pieces(self, text: str) -> list[str]:
        """Return the pieces of a text, which joined are the text; each but the last has `MIN_PIECE_CHARS` or more."""
        token = self._token
        if not token:
            return [text]
        pieces, start, find = [], 0, text.find
        # A token that begins before the place where the search goes on is not found by its rest: its end is not its
        # beginning.
        while (place := find(token, start + MIN_PIECE_CHARS)) >= 0:
            pieces.append(text[start:place])
            start = place
        pieces.append(text[start:])
        return pieces
