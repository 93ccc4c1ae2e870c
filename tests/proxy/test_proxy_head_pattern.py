"""The native core of heads and its pure Python twin say the same."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.proxy.head_pattern import (
    NATIVE,
    PythonPattern,
    python_answer,
    python_own_lines,
    python_request,
    python_stamped,
)

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native core is not built or not wanted")

RAW = b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 17\r\naccept: */*\r\n\r\n"
DIGITS = (RAW.index(b"17"), RAW.index(b"17") + 2)
ALPHABET = st.sampled_from([b"", b"0", b"9", b"17", b"\r", b"\n", b" ", b"+", b"\xb2", b"9" * 18, b"9" * 19, b"\0"])


@given(
    ALPHABET,
    st.integers(0, len(RAW)),
    st.integers(0, 3),
    st.binary(max_size=18),
    st.integers(0, 3),
    st.booleans(),
)
def test_both_find_the_same_heads(put: bytes, place: int, cut: int, rest: bytes, at: int, is_cut: bool) -> None:
    """Whether it stands there, what its length is and where it ends, whatever is put in, taken out, or follows."""
    changed = RAW[:place] + put + RAW[place + cut :] + rest
    data = b"abc"[:at] + (changed[:place] if is_cut else changed)
    native, python = NATIVE.Pattern(RAW, DIGITS), PythonPattern(RAW, DIGITS)
    assert native.matches(data, at) is python.matches(data, at)
    assert (native.length, native.end) == (python.length, python.end)
    assert native.is_whole(data) is python.is_whole(data)
    assert (native.length, native.end) == (python.length, python.end)


@given(st.integers(1, 40), st.integers(0, 60))
def test_both_know_when_all_of_it_is_there(length: int, sent: int) -> None:
    """A body that is cut or followed by more is not whole; nor is one without bytes."""
    data = RAW.replace(b"17", str(length).encode()) + b"x" * sent
    native, python = NATIVE.Pattern(RAW, DIGITS), PythonPattern(RAW, DIGITS)
    assert native.is_whole(data) is python.is_whole(data) is (length == sent)


@given(st.text("ab-9", min_size=1), st.binary(), st.integers(0, 2**40), st.binary(), st.binary(), st.data())
def test_both_put_the_same_bytes_together(
    name: str, one: bytes, matched: int, two: bytes, body: bytes, drawn: st.DataObject
) -> None:
    """Requests, answers, and the router's own lines."""
    assert NATIVE.own_lines(name, one, matched) == python_own_lines(name, one, matched)
    assert NATIVE.request(one, two, b"a: b\r\n", name, body) == python_request(one, two, b"a: b\r\n", name, body)
    end = drawn.draw(st.integers(0, len(body)))
    assert NATIVE.answer(one, two, b"own", body, end) == python_answer(one, two, b"own", body, end)


@pytest.mark.parametrize("wrong", ["é", "\ud800", "a\u0100"])
def test_an_id_that_is_not_ascii_is_an_error_to_both(wrong: str) -> None:
    """It would be sent as other bytes than it was checked as."""
    for own_lines in (NATIVE.own_lines, python_own_lines):
        with pytest.raises(ValueError):
            own_lines(wrong, b"r", 1)


def test_other_types_are_refused_and_not_read() -> None:
    """C reads nothing that it was not given."""
    pattern = NATIVE.Pattern(RAW, DIGITS)
    for call in (
        lambda: pattern.matches("text", 0),
        lambda: pattern.is_whole(bytearray(RAW)),
        lambda: NATIVE.answer(b"", b"", b"", b"abc", "0"),
        lambda: NATIVE.request(b"", b"", b"", b"id", b""),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
    for digits in ((-1, 2), (3, 2), (0, len(RAW) + 1)):
        with pytest.raises(ValueError):
            NATIVE.Pattern(RAW, digits)
    for end in (-1, 4):
        with pytest.raises(ValueError):
            NATIVE.answer(b"", b"", b"", b"abc", end)
    assert not pattern.matches(RAW, -1)
    assert not pattern.matches(RAW, len(RAW) + 9)


class Base:
    __slots__ = ("one", "two")


class Derived(Base):
    __slots__ = ("three",)


class Loose(Base):
    """It has a __dict__."""


@pytest.mark.parametrize("stamped", [python_stamped, NATIVE and NATIVE.stamped])
def test_a_stamped_object_is_like_the_first_and_another(stamped) -> None:
    """Slots of all bases hold the same; to change one changes nothing of the other; none is held longer than it is."""
    first, held = Derived(), [1]
    first.one, first.two, first.three = held, "two", 3.0
    before = sys.getrefcount(held)
    second = stamped(first)
    during = sys.getrefcount(held)
    kept = (type(second), second.one, second.two, second.three)
    second.three = None
    assert kept == (Derived, held, "two", 3.0)
    assert first.three == 3.0
    del second, kept
    assert (during, sys.getrefcount(held)) == (before + 1, before)


def test_only_slots_are_stamped() -> None:
    """What else an object may hold is not passed over in silence."""
    for other in (Loose(), {}, 7, [1], NATIVE.Pattern(RAW, DIGITS)):
        with pytest.raises(TypeError):
            NATIVE.stamped(other)
