"""Texts have the exact length asked for and survive decode and encode."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from loadtest.workloads.text import TextMaker, load_tokenizer, tokenizer_folder

TOKENIZER = load_tokenizer(tokenizer_folder())
MAKER = TextMaker(TOKENIZER)


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(0, 700), seed=st.integers())
def test_a_text_has_exactly_the_tokens_asked_for(tokens: int, seed: int) -> None:
    """Whatever the seed, encoding the text gives as many tokens as were asked for."""
    text = MAKER.make(tokens, random.Random(seed))
    assert len(TOKENIZER.encode(text, add_special_tokens=False).ids) == tokens


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(1, 300), seed=st.integers())
def test_a_text_keeps_its_tokens_through_decode_and_encode(tokens: int, seed: int) -> None:
    """A text that comes back in a later prompt is the same tokens again, or a prefix would be lost."""
    ids = TOKENIZER.encode(MAKER.make(tokens, random.Random(seed)), add_special_tokens=False).ids
    assert TOKENIZER.encode(TOKENIZER.decode(ids), add_special_tokens=False).ids == ids


def test_a_text_keeps_its_length_inside_a_chat_message() -> None:
    """Between the template's newline and special tokens a text is as long as alone."""
    text = MAKER.make(50, random.Random(3))
    around = TOKENIZER.encode("<|im_start|>user\n<|im_end|>\n", add_special_tokens=False).ids
    within = TOKENIZER.encode(f"<|im_start|>user\n{text}<|im_end|>\n", add_special_tokens=False).ids
    assert len(within) == len(around) + 50


def test_a_text_has_no_white_space_at_its_ends() -> None:
    """Templates that trim messages must not change its length."""
    text = MAKER.make(9, random.Random(1))
    assert text == text.strip() != ""


def test_one_seed_gives_one_text() -> None:
    """Equal seeds agree and different seeds differ."""
    one, same, other = (MAKER.make(40, random.Random(seed)) for seed in ("a", "a", "b"))
    assert one == same != other


def test_less_than_no_tokens_is_refused() -> None:
    """A negative length is a caller's mistake and says so."""
    with pytest.raises(ValueError, match="fewer than 0"):
        MAKER.make(-1, random.Random(0))


def test_a_tokenizer_without_words_is_refused() -> None:
    """A vocabulary of single characters can't make text; the error says so rather than looping."""
    tokenizer = Tokenizer(models.WordLevel({character: at for at, character in enumerate("abcdef")}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="too few"):
        TextMaker(tokenizer)


def test_a_missing_tokenizer_is_named(tmp_path) -> None:
    """The error names the folder in which the file was expected."""
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_tokenizer(tmp_path)
