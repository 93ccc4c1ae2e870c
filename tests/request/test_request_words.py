"""Tokenising by words gives the library's own ids, whatever the text."""

from __future__ import annotations

import itertools
import json
import random
import string
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from router.native import core
from router.request.encoders import words
from router.request.encoders.huggingface import HuggingFaceEncoder
from router.request.encoders.word_search import GPT2, MAX_WORD_CHARS, MAX_WORDS, PATTERNS, PlainWords, Words, table_of
from router.request.encoders.words import WordTable, table_for

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer/tokenizer.json"
TOKENS = ["<|im_start|>", "<|im_end|>", "<|im_", "im_end", "|>x", "<tool>", "</tool>", "</think>", "é<", "\n\n"]
CHARACTERS = [chr(code) for code in range(128)]


def _tokenizer(pattern: str, late: bool = False) -> Tokenizer:
    """A byte-level tokenizer with the golden one's vocabulary that divides text by a pattern."""
    tokenizer = Tokenizer.from_file(str(GOLDEN))
    if pattern != GPT2:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
        tokenizer.normalizer = normalizers.NFC()
    for place, text in enumerate(TOKENS):
        tokenizer.add_tokens([AddedToken(text, normalized=late and place % 2 == 1, special=False)])
    return tokenizer


def _library(tokenizer: Tokenizer) -> Callable[[list[str]], list[list[int]]]:
    return lambda texts: [item.ids for item in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _table(tokenizer: Tokenizer, make: Callable[[int], Words] = table_of) -> WordTable:
    """The table as the encoder uses it: a few new words are shown to the model itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "table_of", make)
        table = HuggingFaceEncoder(tokenizer, json.loads(tokenizer.to_str())).words
    assert table is not None
    return table


MAKERS: dict[str, Callable[[int], Words]] = {"plain": PlainWords}
if core("words") is not None:
    MAKERS["native"] = table_of
KINDS = {(name, late, maker): _tokenizer(name, late) for name in PATTERNS for late in (False, True) for maker in MAKERS}
TABLES = {kind: _table(tokenizer, MAKERS[kind[2]]) for kind, tokenizer in KINDS.items()}
kinds = pytest.mark.parametrize(
    "kind",
    list(KINDS),
    ids=[f"{n}{'-late' * late}-{m}" for n in range(len(PATTERNS)) for late in (0, 1) for m in MAKERS],
)
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@kinds
def test_every_pair_and_many_triples_of_ascii_characters(kind: Any) -> None:
    """Each character beside each other one is divided as the library divides it, control characters too."""
    texts = ["".join(pair) for pair in itertools.product(CHARACTERS, repeat=2)]
    few = "a Z09'\n\r\t\v\x1c\x00.-_sS<"
    texts += ["".join(run) for run in itertools.product(few, repeat=3)]
    for text, expected in zip(texts, _library(KINDS[kind])(texts), strict=True):
        assert TABLES[kind].encode(text).tolist() == expected, repr(text)


PIECES = st.one_of(
    st.text(st.sampled_from(string.ascii_letters + "0123456789' .,\n\r\t<|>_"), max_size=12),
    st.text(max_size=6),
    st.sampled_from(
        [*TOKENS, "<|im_e", "nd|>", "'ll", "'LL", "   ", " \n ", "don't", "12345", "İ", "\u017f", "\u2028"]
    ),
)


@kinds
@given(pieces=st.lists(PIECES, max_size=12))
def test_any_text_gives_the_library_s_ids(kind: Any, pieces: list[str]) -> None:
    """Added tokens that overlap, words in every script, spaces of every kind."""
    text = "".join(pieces)
    assert TABLES[kind].encode(text).tolist() == _library(KINDS[kind])([text])[0]


@kinds
def test_long_texts_are_searched_in_slices(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a slice ends: source text, runs of spaces longer than a slice, contractions at its end."""
    source = Path(sysconfig.get_paths()["stdlib"], "argparse.py").read_text()
    rng = random.Random(1)
    odd = "".join(rng.choice(["'s", "'re", " ", "\n", "x", "12", "'", "' ll", " " * 50, "--"]) for _ in range(600))
    texts = [source[:40_000], odd, " " * 3_000, "a" * 3_000 + "'ve" + "\n" * 500, ""]
    monkeypatch.setattr(words, "_PAUSE_S", 0)
    for size in (40, 61, 1_000):
        monkeypatch.setattr(words, "_SLICE_CHARS", size)
        for text, expected in zip(texts, _library(KINDS[kind])(texts), strict=True):
            assert TABLES[kind].encode(text).tolist() == expected


@makers
def test_the_table_is_bounded(make: Callable[[int], Words]) -> None:
    """Words without end begin it anew; long ones are not kept; ids stay the library's."""
    tokenizer = _tokenizer(GPT2)
    table = _table(tokenizer, make)
    for start in range(0, 2 * MAX_WORDS, 8_192):
        text = " ".join(map(str, range(start, start + 8_192)))
        assert table.encode(text).tolist() == _library(tokenizer)([text])[0]
        assert len(table._words) <= MAX_WORDS
    before = len(table._words)
    table.encode("x" * 1_000 + " known")
    assert len(table._words) <= before + 1


@makers
def test_more_words_at_once_than_are_kept(make: Callable[[int], Words]) -> None:
    """They are told all the same, and as many as there is room for are kept."""
    table = make(0)
    many = {f"w{number}": number.to_bytes(4, "little") for number in range(MAX_WORDS + 100)}
    table.learn(many)
    assert len(table) == MAX_WORDS
    text = "".join(f" {word}" for word in ["a"] * 3)
    ids, end, missing = table.encode(text, 0, len(text), {" a": b"abcd"})
    assert (ids, end, missing) == (b"abcd" * 3, len(text), [])


@makers
def test_words_that_are_not_known_are_named_once(make: Callable[[int], Words]) -> None:
    """In the order of the text, up to where a word ends at the stop or after it."""
    table = make(0)
    table.learn({"one": b"\1\0\0\0", "x" * (MAX_WORD_CHARS + 1): b"\2\0\0\0"})
    assert len(table) == 1
    text = "one two three two four"
    _, end, missing = table.encode(text, 0, len(text), {" three": b""})
    assert (end, missing) == (len(text), [" two", " four"])

    assert table.encode("one", 0, 3, {}) == (b"\1\0\0\0", 3, [])


def test_both_tables_divide_alike() -> None:
    """Wherever a slice ends, what Python finds the native core finds too."""
    rng = random.Random(5)
    letters = "ab Z09'\n\r\t\v\x1c\x00.-_/sSlL"
    for kind in sorted(set(PATTERNS.values())):
        plain, made = PlainWords(kind), table_of(kind)
        for _ in range(300):
            text = "".join(rng.choice(letters) * rng.choice([1, 1, 1, 2, 20]) for _ in range(rng.randrange(80)))
            found = [plain.encode(text, 0, len(text), {}), made.encode(text, 0, len(text), {})]
            assert found[0][1:] == found[1][1:], repr(text)


@pytest.mark.skipif(core("words") is None, reason="the native core is not built here")
def test_native_words_refuse_what_makes_no_sense() -> None:
    """No text but ASCII, no place outside of it, no ids of other widths."""
    native = core("words")
    assert native is not None
    table = native.Words(0, 1, 10)
    with pytest.raises(ValueError, match="ASCII"):
        table.encode("é", 0, 1, {})
    with pytest.raises(ValueError, match="start"):
        table.encode("a", 2, 3, {})
    for bad in ({"é": b"1234"}, {"a": b"123"}, {1: b"1234"}, {"a": "1234"}):
        with pytest.raises(TypeError):
            table.learn(bad)
    with pytest.raises(ValueError, match="pattern"):
        native.Words(9, 1, 10)


def _described(**changes: Any) -> dict[str, Any]:
    return {**json.loads(_tokenizer(GPT2).to_str()), **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"pre_tokenizer": None},
        {"model": {"type": "Unigram"}},
        {"model": {"type": "BPE", "dropout": 0.1}},
    ],
)
def test_what_is_not_sure_is_left_to_the_library(changes: dict[str, Any]) -> None:
    """Another normaliser, expression or model: no table."""
    assert table_for(_described(**changes), {}, lambda texts: []) is None


@pytest.mark.parametrize("option", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_that_look_around_are_left_to_the_library(option: str) -> None:
    """Where such a token is found depends on more than its text."""
    assert table_for(_described(), {5: AddedToken("<x>", **{option: True})}, lambda texts: []) is None


def test_a_unigram_tokenizer_is_loaded_without_a_table(tmp_path: Path) -> None:
    """All of its texts go to the library, as before."""
    from router.request.encoders.huggingface import load

    tokenizer = Tokenizer(models.Unigram([("a", 0.0), ("b", -1.0)], 0, False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder, _ = load(tmp_path)
    assert encoder.words is None
    assert list(encoder.encode(["ab"])[0]) == tokenizer.encode("ab").ids
