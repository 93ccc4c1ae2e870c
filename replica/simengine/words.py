"""The answers: pseudo text of words that survive being decoded and encoded again.

A client of a chat sends an answer back as text with its next turn. A real model's tokens do not always come back the
same; here they must, so that a measured miss is the router's and not the text's. So answers are built from single-token
words that a space parts, and a word is used only if the tokenizer gives the same ids back.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Sequence

from replica.simengine.text import Text

_WORD = re.compile(r"[A-Za-z]{3,}")
_MOST = 1024
_MASK = (1 << 64) - 1


class Words:
    """The vocabulary of answers.

    Attributes:
        text: Text of each token that answers use, by id.
    """

    def __init__(self, text: Text) -> None:
        bare: list[int] = []
        spaced: list[int] = []
        for token, spelled in _candidates(text):
            (spaced if spelled.startswith(" ") else bare).append(token)
        spaced = _surviving(text, spaced)
        self._following = spaced or bare or [0]
        self._opening = [
            token
            for token in bare[:256]
            if text.encode(text.decode([token, self._following[0]]), add_special_tokens=False)
            == [token, self._following[0]]
        ] or self._following
        self.text = {token: text.decode([token]) for token in {*self._opening, *self._following}}

    def answer(self, seed: str, prompt: Sequence[int], choice: int, *, opens_line: bool) -> Callable[[], int]:
        """Return a source of tokens: always the same for the same arguments.

        Args:
            seed: The engine's and the request's seed.
            prompt: Token ids that are answered.
            choice: Number of the answer where several are asked for one prompt.
            opens_line: Whether the answer begins a message (a chat) or goes on with a text.
        """
        digest = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=8, key=seed.encode()[:64])
        state = (int.from_bytes(digest.digest(), "big") + choice * 0x9E3779B97F4A7C15) & _MASK
        words = self._opening if opens_line else self._following

        def next_token() -> int:
            nonlocal state, words
            state = (state * 6364136223846793005 + 1442695040888963407) & _MASK
            token = words[(state >> 33) % len(words)]
            words = self._following
            return token

        return next_token


def _candidates(text: Text) -> list[tuple[int, str]]:
    """Return single-token words with and without a leading space, by id."""
    found = []
    for token in range(text.vocabulary):
        spelled = text.decode([token])
        if _WORD.fullmatch(spelled.removeprefix(" ")) and text.encode(spelled, add_special_tokens=False) == [token]:
            found.append((token, spelled))
            if len(found) >= 2 * _MOST:
                break
    return found


def _surviving(text: Text, tokens: list[int]) -> list[int]:
    """Return those that come back the same beside each other."""
    tokens = tokens[:_MOST]
    if text.encode(text.decode(tokens), add_special_tokens=False) == tokens:
        return tokens
    return [
        token for token in tokens if text.encode(text.decode([token, token]), add_special_tokens=False) == [token] * 2
    ]
