"""Tokenizers of Hugging Face: `tokenizer.json`, completed as transformers completes it. Follows transformers 5."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from router.request.encoders.cutting import never_covered
from router.request.encoders.encoder import Added, TokenizerError
from router.request.encoders.files import read_json
from router.request.encoders.words import table_for
from router.request.reasons import NotUnderstoodError, Reason

# The library would hand each text to threads of its own, and wait for them; prompts are read in threads already.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
FILE = "tokenizer.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Parts that treat the text between two added tokens by itself, and always alike. Looked up in the library's source
# (tokenizers 0.23): a part that is not named here may do otherwise, and then no text is cut.
_LOCAL_PARTS = {
    "normalizer": frozenset(
        "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Sequence Strip "
        "StripAccents".split()
    ),
    "pre_tokenizer": frozenset(
        "BertPreTokenizer ByteLevel CharDelimiterSplit Digits Metaspace Punctuation Sequence Split UnicodeScripts "
        "Whitespace WhitespaceSplit".split()
    ),
    "post_processor": frozenset("BertProcessing ByteLevel RobertaProcessing Sequence TemplateProcessing".split()),
    "model": frozenset("BPE Unigram WordLevel WordPiece".split()),
}
_INNER = ("normalizers", "pretokenizers", "processors")
_PROBES = ("a", "b c")
_FEW_WORDS = 64
# Byte-level tokenizers show their model a printable character for each byte: spaces and control characters get others.
_BYTE_LEVEL = {code: chr(256 + place) for place, code in enumerate((*range(33), 127))}
_SURROGATE = re.compile("[\ud800-\udfff]").search


class HuggingFaceEncoder:
    """A `tokenizers.Tokenizer` behind `TextEncoder`."""

    def __init__(self, tokenizer: Tokenizer, description: Mapping[str, Any]) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: With truncation and padding off.
            description: Its `tokenizer.json`, for what the library does not tell of its parts.
        """
        self._tokenizer = tokenizer
        self._model = tokenizer.model
        self.words = None
        if not tokenizer.encode_special_tokens:
            added = tokenizer.get_added_tokens_decoder()
            self.words = table_for(description, added, self._encode_whole, self._encode_words)
        self.added = self._find_added()
        self.sure_tokens = _sure_tokens(tokenizer, description)

    def normalised(self, text: str) -> str:
        """Return the text: added tokens are looked for before it is normalised."""
        return text

    def encode(self, pieces: Sequence[str]) -> list[Sequence[int]]:
        """Return the ids of each piece; see `TextEncoder`."""
        words = self.words
        if words is None or not all(map(_is_text, pieces)):
            return list(self._encode_whole(list(pieces)))
        return [words.encode(piece) for piece in pieces]

    def _encode_whole(self, pieces: list[str]) -> list[list[int]]:
        """Return the ids of each piece by the library."""
        return [encoding.ids for encoding in self._encode(pieces, add_special_tokens=False)]

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of words of ASCII text, each of which the model looks at by itself.

        A few are shown to the model at once: a third of the time that the library takes around it.
        """
        if len(words) > _FEW_WORDS:  # the batch call lets other threads run meanwhile
            return self._encode_whole(words)
        tokenize = self._model.tokenize
        try:
            return [[token.id for token in tokenize(_byte_level(word))] for word in words]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # as below
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None

    def _encode(self, texts: list[str], add_special_tokens: bool) -> list[Any]:
        try:
            # The batch call lets other threads run meanwhile, and it computes no offsets; `encode` does neither.
            encodings: list[Any] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the Rust code is no Exception
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None
        return encodings

    def _find_added(self) -> Added | None:
        """Find what the post-processor adds, by what it adds to two texts."""
        try:
            found = {self._added_to(probe) for probe in _PROBES}
        except NotUnderstoodError:
            return None
        return found.pop() if len(found) == 1 else None

    def _added_to(self, probe: str) -> Added | None:
        [bare] = self._encode_whole([probe])
        whole = self._encode([probe], add_special_tokens=True)[0].ids
        places = [place for place in range(len(whole) - len(bare) + 1) if whole[place : place + len(bare)] == bare]
        if not bare or len(places) != 1:
            return None
        return Added(tuple(whole[: places[0]]), tuple(whole[places[0] + len(bare) :]))


def _byte_level(word: str) -> str:
    """Return an ASCII word as byte-level tokenizers show it to their model."""
    return word.replace(" ", _BYTE_LEVEL[ord(" ")]) if word.isprintable() else word.translate(_BYTE_LEVEL)


def _is_text(piece: str) -> bool:
    """Whether a piece can be encoded: a lone surrogate can't, which the library says in its own way."""
    return piece.isascii() or not _SURROGATE(piece)


def load(folder: Path) -> tuple[HuggingFaceEncoder, dict[str, str]]:
    """Load a tokenizer and its special tokens (`bos_token`, `eos_token`...) from a folder.

    Raises:
        TokenizerError: When something is missing or broken.
    """
    file = folder / FILE
    try:
        tokenizer = Tokenizer.from_file(str(file))
        description = _described(file.read_bytes())
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{file} can't be read ({error}): copy it again from the model") from None
    config = {**read_json(folder / "special_tokens_map.json"), **read_json(folder / "tokenizer_config.json")}
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    special_tokens = special_tokens_of(config)
    _add_missing(tokenizer, config, special_tokens)
    return HuggingFaceEncoder(tokenizer, description), special_tokens


class _Model(msgspec.Struct):
    """A tokenizer's model, but for its vocabulary."""

    type: Any = None
    dropout: Any = None


class _Description(msgspec.Struct):
    """What of `tokenizer.json` the library does not tell."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    model: _Model = msgspec.field(default_factory=_Model)


def _described(data: bytes) -> dict[str, Any]:
    """Return the parts of a `tokenizer.json`. Its vocabulary is passed over: to make objects of 150,000 entries would
    hold up every other thread for half a second."""
    read = msgspec.json.decode(data, type=_Description)
    return {
        "normalizer": read.normalizer,
        "pre_tokenizer": read.pre_tokenizer,
        "post_processor": read.post_processor,
        "model": {"type": read.model.type, "dropout": read.model.dropout},
    }


def special_tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of `bos_token`, `eos_token`... that a `tokenizer_config.json` names."""
    return {name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None}


def _token_text(token: object) -> str | None:
    """Return a token's text; files hold it as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_missing(tokenizer: Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Add the tokens that the configuration names and `tokenizer.json` does not, as transformers does."""
    known = {str(token.content) for token in tokenizer.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder")
    items = sorted(listed.items(), key=lambda item: int(item[0])) if isinstance(listed, dict) else []
    wanted = [AddedToken(**{k: v for k, v in token.items() if k != "__type"}) for _, token in items]
    more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    more = list(more.values()) if isinstance(more, dict) else more
    for text in (*special_tokens.values(), *map(_token_text, more)):
        if text is not None and text not in {token.content for token in wanted}:
            wanted.append(AddedToken(text, special=True, normalized=False))
    tokenizer.add_tokens([token for token in wanted if token.content not in known])


def _sure_tokens(tokenizer: Tokenizer, description: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the added tokens in front of which a text may be cut."""
    if tokenizer.encode_special_tokens or not _is_local(description):
        return ()
    tokens = tokenizer.get_added_tokens_decoder().values()
    if any(token.single_word for token in tokens):  # such a token looks at its neighbours, whatever they are
        return ()
    first = [token for token in tokens if not token.normalized]  # found before the text is normalised
    texts = [str(token.content) for token in first]
    return tuple(
        text
        for token, text in zip(first, texts, strict=True)
        if not token.lstrip and text.strip() == text and never_covered(text, texts)
    )


def _is_local(description: Mapping[str, Any]) -> bool:
    """Whether every part of the tokenizer is known to treat the text between two added tokens by itself."""
    for name, known in _LOCAL_PARTS.items():
        part = description.get(name)
        if part is not None and not all(kind in known for kind in _kinds(part)):
            return False
    model = description.get("model") or {}
    return not model.get("dropout") and _has_one_sequence(description.get("post_processor"))


def _kinds(part: Mapping[str, Any]) -> Iterable[object]:
    """Return the type of a part and of those that it is made of."""
    yield part.get("type")
    for name in _INNER:
        for inner in part.get(name) or ():
            yield from _kinds(inner)


def _has_one_sequence(processor: Mapping[str, Any] | None) -> bool:
    """Whether a template puts the text in once."""
    if processor is None:
        return True
    if processor.get("type") == "Sequence":
        return all(_has_one_sequence(inner) for inner in processor.get("processors") or ())
    single = processor.get("single")
    return single is None or sum("Sequence" in item for item in single) == 1
