"""Pseudo text of exact token lengths, from a seed.

Words are taken from the tokenizer's own vocabulary: those that are one token behind a space. A text of n tokens is then
n words, and its tokens stay the same when it is decoded and encoded again, so that an answer or a document that comes
back in a later prompt is the same prefix to the engine's cache.
"""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

WORDS_AT_MOST = 3_000
CORRECTIONS_AT_MOST = 64


def tokenizer_folder() -> Path:
    """Return the folder of the small tokenizer that ships with the package: 4,096 entries, ChatML template."""
    return Path(__file__).parent / "tokenizer"


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load `tokenizer.json` of a model's folder.

    Raises:
        FileNotFoundError: The folder holds none.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"no tokenizer.json in {folder}: name a model's tokenizer folder")
    return Tokenizer.from_file(str(path))


class TextMaker:
    """Makes texts of exact token lengths with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Collect the words.

        Raises:
            ValueError: The vocabulary holds too few plain words to make text from.
        """
        self.tokenizer = tokenizer
        self._words = _plain_words(tokenizer)
        self._openings = [word for word in self._words if len(self._encode(word)) == 1]
        if len(self._words) < 100 or not self._openings:
            raise ValueError("the tokenizer's vocabulary holds too few lower-case words to make text from")

    def make(self, tokens: int, rng: random.Random) -> str:
        """Make a text of exactly `tokens` tokens (0 or more), without white space at its ends.

        Raises:
            ValueError: `tokens` is negative, or the tokenizer merges across words so that no such text was found.
        """
        if tokens < 0:
            raise ValueError("a text can't have fewer than 0 tokens")
        if tokens == 0:
            return ""
        words = [rng.choice(self._openings), *rng.choices(self._words, k=tokens - 1)]
        for _ in range(CORRECTIONS_AT_MOST):
            text = " ".join(words)
            excess = len(self._encode(text)) - tokens
            if excess == 0:
                return text
            if excess > 0:
                del words[max(1, len(words) - excess) :]
            else:
                words += rng.choices(self._words, k=-excess)
        raise ValueError(f"found no text of exactly {tokens} tokens with this tokenizer")

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _plain_words(tokenizer: Tokenizer) -> list[str]:
    """Lower-case words that add exactly one token behind another word, in order of their ids."""
    words: list[str] = []
    seen: set[str] = set()
    before = len(tokenizer.encode("of", add_special_tokens=False).ids)
    for token_id in range(tokenizer.get_vocab_size()):
        word = tokenizer.decode([token_id]).strip()
        if len(word) < 2 or word in seen or not (word.isascii() and word.isalpha() and word.islower()):
            continue
        seen.add(word)
        if len(tokenizer.encode(f"of {word}", add_special_tokens=False).ids) == before + 1:
            words.append(word)
            if len(words) == WORDS_AT_MOST:
                break
    return words
