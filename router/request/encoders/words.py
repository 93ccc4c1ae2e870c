"""Tokenising by words: for byte-level BPE the ids of a text are those of its words, and words come again.

Such a tokenizer first splits off its added tokens, then divides what is between them by a regular expression, and only
then looks at each word, by itself. So the ids of a word are asked of the library once and kept, and a text whose words
are known is a search and a look-up a word: five times as fast as the library, which computes each word's place in the
text besides.

It is exact by construction, and only done where that can be shown:

- The expression is one of those below, each of which is written here a second time in Python's terms, for ASCII text
  alone: there letters, digits and spaces are the same to both. A part of a text with any other character goes to the
  library as a whole.
- No added token looks at its neighbours or takes spaces, so each is found where its text is: the leftmost first, of
  several there the longest.
- A normaliser, if any, leaves ASCII text as it is.

`tests/request/test_request_words.py` holds it against the library, character by character and by chance.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

MAX_WORDS = 1 << 16
"""Words kept; past that the table begins anew. With their ids they take some 15 MB."""
MAX_WORD_CHARS = 64
"""Longer words hardly come again."""
_SLICE_CHARS = 8_192
"""Searched at once: half a millisecond, in which no other thread gets the interpreter."""
_MARGIN_CHARS = 16
"""A match that ends so near to the end of a slice might be another one with the text that follows."""
_PAUSE_S = 0.000_05

_SPACE = r"\t\n\x0b\x0c\r "
_OTHER = rf"[^{_SPACE}A-Za-z0-9]"
_ENDS = rf"[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NEWER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _newer(digits: str) -> str:
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{digits}| ?{_OTHER}+[\r\n]*"
        rf"|[{_SPACE}]*[\r\n]+|{_ENDS}"
    )


PATTERNS: Mapping[str, str] = {
    _GPT2: rf"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?{_OTHER}+|{_ENDS}",
    _NEWER % "": _newer(""),  # Qwen 2 and 3
    _NEWER % "{1,3}": _newer("{1,3}"),  # Llama 3 and GPT-4
}
"""The expressions that tokenizers bring, and what they are for ASCII text."""
_UNCHANGED_BY = frozenset({"NFC", "NFD", "NFKC", "NFKD"})


def find_words_of(description: Mapping[str, Any]) -> Callable[..., list[str]] | None:
    """Return what divides ASCII text into words as a tokenizer does; None where that is not known.

    Args:
        description: Its `tokenizer.json`.
    """
    model, normalizer = description.get("model") or {}, description.get("normalizer")
    if model.get("type") != "BPE" or model.get("dropout"):
        return None
    if normalizer is not None and normalizer.get("type") not in _UNCHANGED_BY:
        return None
    pattern = PATTERNS.get(_pattern_of(description.get("pre_tokenizer") or {}))
    return re.compile(pattern).findall if pattern is not None else None


def _pattern_of(part: Mapping[str, Any]) -> str:
    """Return the expression that alone divides a text; an empty text where it is another part that does."""
    if part.get("type") == "ByteLevel":
        return _GPT2 if part.get("use_regex", True) and not part.get("add_prefix_space", True) else ""
    steps = part.get("pretokenizers") if part.get("type") == "Sequence" else None
    if not isinstance(steps, list) or len(steps) != 2:
        return ""
    split, level = steps
    if level.get("type") != "ByteLevel" or level.get("use_regex", True) or level.get("add_prefix_space", True):
        return ""
    # Each of the expressions matches any text from end to end, so that nothing is left between two matches.
    kept = (split.get("behavior"), split.get("invert")) in (("Isolated", False), ("Removed", True))
    pattern = split.get("pattern")
    if split.get("type") != "Split" or not kept or not isinstance(pattern, dict):
        return ""
    return str(pattern.get("Regex", ""))


class WordTable:
    """Tokenises by words. Safe to use from several threads."""

    def __init__(
        self,
        find: Callable[..., list[str]],
        added: Iterable[tuple[int, AddedToken]],
        encode: Callable[[list[str]], list[list[int]]],
    ) -> None:
        """Make an empty table; `table_for` tells whether there may be one.

        Args:
            find: From `find_words_of`.
            added: The tokenizer's added tokens by their ids.
            encode: The library: the ids of each of these texts, without special ones around.
        """
        self._find = find
        self._encode = encode
        self._known: dict[str, bytes] = {}
        tokens = [(str(token.content), number, token.normalized) for number, token in added]
        self._added = {text: _bytes_of((number,)) for text, number, _ in tokens}
        # Those that are looked for before the text is normalised come first, whatever is between.
        groups = ([text for text, _, is_late in tokens if is_late is late] for late in (False, True))
        self._splitters = [_splitter(group) for group in groups if group]

    def encode(self, text: str) -> array[int]:
        """Return the ids of a text, without special ones around.

        Raises:
            NotUnderstoodError: TOKENIZER_ERROR.
        """
        ids = bytearray()
        for part in self._parts(text, 0):
            if (token := self._added.get(part)) is not None:
                ids += token
            elif part.isascii():
                ids += self._words(part)
            elif part:
                ids += _bytes_of(self._encode([part])[0])
        result = array("I")
        result.frombytes(ids)
        return result

    def _parts(self, text: str, group: int) -> list[str]:
        if group == len(self._splitters):
            return [text]
        parts = self._splitters[group](text)
        if group + 1 == len(self._splitters):
            return parts
        tokens = self._added
        return [item for part in parts for item in ([part] if part in tokens else self._parts(part, group + 1))]

    def _words(self, text: str) -> bytes:
        if len(text) <= _SLICE_CHARS:
            return self._ids_of(self._find(text))
        ids, start, size = bytearray(), 0, _SLICE_CHARS
        while start < len(text):
            end = start + size
            words = self._find(text, start, end)
            if end < len(text):
                sure = end
                while words and sure > end - _MARGIN_CHARS:
                    sure -= len(words.pop())
                if not words:  # one very long word
                    size *= 2
                    continue
                end = sure
            start, size = end, _SLICE_CHARS
            ids += self._ids_of(words)
            time.sleep(_PAUSE_S)
        return bytes(ids)

    def _ids_of(self, words: Sequence[str]) -> bytes:
        known = self._known
        try:
            return b"".join(map(known.__getitem__, words))
        except KeyError:
            pass
        new = [word for word in dict.fromkeys(words) if word not in known]
        learned = dict(zip(new, map(_bytes_of, self._encode(new)), strict=True))
        if len(known) + len(new) > MAX_WORDS:
            self._known = known = {}
        known.update((word, ids) for word, ids in learned.items() if len(word) <= MAX_WORD_CHARS)
        if len(learned) == len(words):
            return b"".join(learned.values())
        return b"".join([learned.get(word) or known.get(word) or self._alone(word) for word in words])

    def _alone(self, word: str) -> bytes:
        """Return the ids of a word that was known until the table began anew."""
        return _bytes_of(self._encode([word])[0])


def table_for(
    description: Mapping[str, Any],
    added: Mapping[int, AddedToken],
    encode: Callable[[list[str]], list[list[int]]],
) -> WordTable | None:
    """Return an empty table for a tokenizer; None where it is not sure to give the library's ids.

    Args:
        description: Its `tokenizer.json`.
        added: Its added tokens by their ids, as the library has them.
        encode: The library's own.
    """
    find = find_words_of(description)
    if find is None or any(token.single_word or token.lstrip or token.rstrip for token in added.values()):
        return None
    if len({str(token.content) for token in added.values()}) != len(added):
        return None
    return WordTable(find, added.items(), encode)


def _splitter(tokens: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what splits a text at tokens and keeps them; of several at one place the longest is found."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})").split


def _bytes_of(ids: Iterable[int]) -> bytes:
    return array("I", ids).tobytes()
