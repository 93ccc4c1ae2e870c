"""Tokenising by words: for byte-level BPE the ids of a text are those of its words, and words come again.

Such a tokenizer first splits off its added tokens, then divides what is between them by a regular expression, and only
then looks at each word, by itself. So the ids of a word are asked of the library once and kept, and a text whose words
are known is a search and a look-up a word: many times as fast as the library, which computes each word's place in the
text besides.

It is exact by construction, and only done where that can be shown:

- The expression is one that `router.request.encoders.word_search` knows, for ASCII text. A part of a text with any
  other character goes to the library as a whole.
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

from router.request.encoders.word_search import GPT2, PATTERNS, Words, table_of

Encode = Callable[[list[str]], list[list[int]]]
_SLICE_CHARS = 8_192
"""Searched at once: half a millisecond without the native core, in which no other thread gets the interpreter."""
_PAUSE_S = 0.000_05
_UNCHANGED_BY = frozenset({"NFC", "NFD", "NFKC", "NFKD"})


def kind_of(description: Mapping[str, Any]) -> int | None:
    """Return how a tokenizer divides ASCII text into words; None where that is not known.

    Args:
        description: Its `tokenizer.json`.
    """
    model, normalizer = description.get("model") or {}, description.get("normalizer")
    if model.get("type") != "BPE" or model.get("dropout"):
        return None
    if normalizer is not None and normalizer.get("type") not in _UNCHANGED_BY:
        return None
    return PATTERNS.get(_pattern_of(description.get("pre_tokenizer") or {}))


def _pattern_of(part: Mapping[str, Any]) -> str:
    """Return the expression that alone divides a text; an empty text where it is another part that does."""
    if part.get("type") == "ByteLevel":
        return GPT2 if part.get("use_regex", True) and not part.get("add_prefix_space", True) else ""
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
        self, words: Words, added: Iterable[tuple[int, AddedToken]], encode: Encode, encode_words: Encode
    ) -> None:
        """Use an empty table of words; `table_for` tells whether there may be one.

        Args:
            words: For the tokenizer's kind.
            added: The tokenizer's added tokens by their ids.
            encode: The library: the ids of each of these texts, without special ones around.
            encode_words: The same for ASCII texts that are a word each.
        """
        self._words = words
        self._encode = encode
        self._encode_words = encode_words
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
        result = array("I")
        for part in self._parts(text, 0):
            if (token := self._added.get(part)) is not None:
                result.frombytes(token)
            elif part.isascii():
                self._add_words(part, result)
            elif part:
                result.extend(self._encode([part])[0])
        return result

    def _parts(self, text: str, group: int) -> list[str]:
        if group == len(self._splitters):
            return [text]
        parts = self._splitters[group](text)
        if group + 1 == len(self._splitters):
            return parts
        tokens = self._added
        return [item for part in parts for item in ([part] if part in tokens else self._parts(part, group + 1))]

    def _add_words(self, text: str, result: array[int]) -> None:
        start = 0
        while start < len(text):
            if start:
                time.sleep(_PAUSE_S)
            learned: dict[str, bytes] = {}
            ids, end, missing = self._words.encode(text, start, start + _SLICE_CHARS, learned)
            while missing:  # again where a word was known until the table began anew
                fresh = dict(zip(missing, map(_bytes_of, self._encode_words(missing)), strict=True))
                learned |= fresh
                self._words.learn(fresh)
                ids, end, missing = self._words.encode(text, start, start + _SLICE_CHARS, learned)
            result.frombytes(ids)
            start = end


def table_for(
    description: Mapping[str, Any],
    added: Mapping[int, AddedToken],
    encode: Encode,
    encode_words: Encode | None = None,
) -> WordTable | None:
    """Return an empty table for a tokenizer; None where it is not sure to give the library's ids.

    Args:
        description: Its `tokenizer.json`.
        added: Its added tokens by their ids, as the library has them.
        encode: The library: the ids of each of these texts, without special ones around.
        encode_words: The same for ASCII texts that are a word each; None: there is no shorter way.
    """
    kind = kind_of(description)
    if kind is None or any(token.single_word or token.lstrip or token.rstrip for token in added.values()):
        return None
    if len({str(token.content) for token in added.values()}) != len(added):
        return None
    return WordTable(table_of(kind), added.items(), encode, encode_words or encode)


def _splitter(tokens: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what splits a text at tokens and keeps them; of several at one place the longest is found."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})").split


def _bytes_of(ids: Iterable[int]) -> bytes:
    return array("I", ids).tobytes()
