"""The words of ASCII text as byte-level BPE tokenizers divide it, and a table of their ids.

A tokenizer brings a regular expression; those below are known, and each is written here a second time in Python's
terms, for ASCII text alone: there letters, digits and spaces are the same to both.

The table is C where that is built (`router/native/words.c`) and `PlainWords` elsewhere: a tenth of the speed, the same
results. `tests/request/test_request_words.py` holds both against the library.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from router.native import core

MAX_WORDS = 1 << 16
"""Words kept; past that the table begins anew. With their ids they take some 15 MB, or 4 MB in C."""
MAX_WORD_CHARS = 64
"""Longer words hardly come again."""
_MARGIN_CHARS = 16
"""A match that ends so near to the end of a slice might be another one with the text that follows."""

_SPACE = r"\t\n\x0b\x0c\r "
_OTHER = rf"[^{_SPACE}A-Za-z0-9]"
_ENDS = rf"[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The expression of tokenizers that name none."""
_NEWER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _newer(digits: str) -> str:
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{digits}| ?{_OTHER}+[\r\n]*"
        rf"|[{_SPACE}]*[\r\n]+|{_ENDS}"
    )


_KINDS = (rf"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?{_OTHER}+|{_ENDS}", _newer(""), _newer("{1,3}"))
"""What divides ASCII text; the C code has them by their places."""
PATTERNS: Mapping[str, int] = {
    GPT2: 0,
    _NEWER % "": 1,  # Qwen 2 and 3
    _MARKS: 1,  # Qwen 3.5 and newer; no mark is ASCII
    _NEWER % "{1,3}": 2,  # Llama 3 and GPT-4
}
"""The expressions that tokenizers bring, and the kind that each is for ASCII text."""


class Words(Protocol):
    """A table of words and their ids for one kind of expression. Safe to use from several threads."""

    def encode(self, text: str, start: int, stop: int, learned: dict[str, bytes], /) -> tuple[bytes, int, list[str]]:
        """Return the ids of the words from `start` on.

        Args:
            text: ASCII.
            start: Where a word begins.
            stop: Words are taken until one ends here or after it; the text's end at the latest.
            learned: Ids of words that the table may not have.

        Returns:
            The ids, 32 bits each; where the last word ends; and the words that are in neither, each once: where there
            are any the ids are not all.
        """

    def learn(self, words: dict[str, bytes], /) -> None:
        """Keep the ids of words; longer ones are left out, and past `MAX_WORDS` the table begins anew."""

    def __len__(self) -> int: ...


class PlainWords:
    """`Words` in Python."""

    def __init__(self, kind: int, most: int = MAX_WORDS) -> None:
        self._find: Callable[..., list[str]] = re.compile(_KINDS[kind]).findall
        self._most = most
        self._known: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._known)

    def encode(self, text: str, start: int, stop: int, learned: dict[str, bytes], /) -> tuple[bytes, int, list[str]]:
        """See `Words`."""
        words, end = self._words(text, start, stop)
        known = self._known
        try:
            return b"".join(map(known.__getitem__, words)), end, []
        except KeyError:
            pass
        if learned:
            known = {**{word: known[word] for word in words if word in known}, **learned}
        missing = [word for word in dict.fromkeys(words) if word not in known]
        return b"" if missing else b"".join(map(known.__getitem__, words)), end, missing

    def learn(self, words: dict[str, bytes], /) -> None:
        """See `Words`."""
        if len(self._known) + len(words) > self._most:
            self._known = {}
        room = self._most - len(self._known)
        kept = [(word, ids) for word, ids in words.items() if len(word) <= MAX_WORD_CHARS]
        self._known.update(kept[:room])

    def _words(self, text: str, start: int, stop: int) -> tuple[Sequence[str], int]:
        size = stop - start
        while stop < len(text):
            words, sure = self._find(text, start, stop), stop
            while words and sure > stop - _MARGIN_CHARS:
                sure -= len(words.pop())
            if words:
                return words, sure
            size *= 2  # one very long word
            stop = start + size
        return self._find(text, start), len(text)


def table_of(kind: int) -> Words:
    """Return an empty table for one of the kinds that `PATTERNS` names."""
    native = core("words")
    if native is None:
        return PlainWords(kind)
    table: Words = native.Words(kind, secrets.randbits(64), MAX_WORDS)
    return table
