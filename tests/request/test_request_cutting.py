"""Cutting text at special tokens: never where the tokenizer might not."""

from __future__ import annotations

import pytest

from router.request.encoders.cutting import MIN_PIECE_CHARS, Cutter, never_covered

LONG = "x" * MIN_PIECE_CHARS


@pytest.mark.parametrize(
    ("token", "others"),
    [
        ("<s>", ["<s>", "</s>"]),
        ("<|im_start|>", ["<|im_start|>", "<|im_end|>", "<|im_"]),  # one that begins it is shorter: the longer is taken
        ("abc", ["abc", "cde"]),  # the other begins later
        ("<a>", ["<a>", "<"]),
    ],
)
def test_tokens_that_nothing_covers(token: str, others: list[str]) -> None:
    """A token is sure when no other one can take its beginning."""
    assert never_covered(token, others)


@pytest.mark.parametrize(
    ("token", "others"),
    [
        ("<s>", ["<s>", "<s>x"]),  # begins at the same place and is longer
        ("<s>", ["<s>", "a<s>b"]),  # holds it
        ("abc", ["abc", "xxa"]),  # ends in its beginning
        ("abc", ["abc", "xab"]),
        ("aba", ["aba"]),  # itself does: in ababa, where the search begins matters
        ("", [""]),
    ],
)
def test_tokens_that_another_may_cover(token: str, others: list[str]) -> None:
    """A token is not sure when another one, or itself, can take its beginning."""
    assert not never_covered(token, others)


def test_pieces_begin_with_the_token() -> None:
    """The token stays with what follows it, and the pieces make up the text."""
    text = f"{LONG}<s>{LONG}<s>end"
    assert Cutter("<s>").pieces(text) == [LONG, f"<s>{LONG}", "<s>end"]


def test_short_pieces_are_joined() -> None:
    """A piece has the least length, but for the last one."""
    text = f"<s>a<s>b<s>{LONG}<s>c<s>d"
    assert Cutter("<s>").pieces(text) == [f"<s>a<s>b<s>{LONG}", "<s>c<s>d"]


def test_without_a_token() -> None:
    """A text is one piece where no cut is sure."""
    assert Cutter(None).pieces(f"{LONG}<s>{LONG}") == [f"{LONG}<s>{LONG}"]


def test_a_longer_text_gives_the_same_first_pieces() -> None:
    """What is added at the end changes the last piece alone."""
    turns = [f"<s>user {number} {LONG}" for number in range(5)]
    cutter = Cutter("<s>")
    shorter, longer = cutter.pieces("".join(turns[:3]) + "<s>"), cutter.pieces("".join(turns))
    assert longer[:3] == shorter[:3]
