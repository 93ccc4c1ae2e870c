"""Heads compared byte by byte, the bytes that are made of them, and objects that are like others.

This is the pure Python twin of `router/native/wire.c`, which does the same in a fraction of the time: with each request
two heads are compared and three pieces of bytes put together. Tests hold both equal.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from router.native import core

Stamped = TypeVar("Stamped")

DIGITS = 18
"""More of them than any length has that is served; llhttp refuses what overflows 64 bits."""


class PythonPattern:
    """A head's bytes around the digits of its length.

    Attributes:
        length: Of the head that matched last.
        end: Where it ended.
    """

    __slots__ = ("_after", "_after_bytes", "_before", "_before_bytes", "end", "length")

    def __init__(self, raw: bytes, digits: tuple[int, int]) -> None:
        self._before = raw[: digits[0]]
        self._after = raw[digits[1] :]
        self._before_bytes = len(self._before)
        self._after_bytes = len(self._after)
        self.length = 0
        self.end = 0

    def matches(self, data: bytes, at: int) -> bool:
        """Tell whether this head stands at a place, all of it."""
        if not data.startswith(self._before, at):
            return False
        begin = at + self._before_bytes
        end = data.find(b"\r", begin, begin + DIGITS + 1)
        digits = data[begin:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return False
        self.length = int(digits)
        self.end = end + self._after_bytes
        return True

    def is_whole(self, data: bytes) -> bool:
        """Tell whether it is this head and its body, not empty, and no more."""
        return self.matches(data, 0) and len(data) - self.end == self.length > 0


def python_own_lines(request_id: str, replica: bytes, matched_tokens: int) -> bytes:
    """Return the router's own lines of an answer."""
    return b"x-request-id: %b\r\nx-warmroute-replica: %b\r\nx-warmroute-matched-tokens: %d\r\n" % (
        request_id.encode("ascii"),
        replica,
        matched_tokens,
    )


def python_answer(before: bytes, after: bytes, own: bytes, data: bytes, end: int) -> bytes:
    """Return an answer as it goes to the client.

    Args:
        before, after: Its head around the digits of its length, without the empty line.
        own: Lines that are added to the head.
        data: As it came from the engine; its body begins at `end`.
    """
    return b"%b%d%b%b\r\n%b" % (before, len(data) - end, after, own, data[end:])


def python_request(begin: bytes, authority: bytes, lines: bytes, request_id: str, body: bytes) -> bytes:
    """Return a request as it goes to an engine.

    Args:
        begin: Its first line, and the name of the second, Host.
        lines: The client's that cross.
    """
    head = b"%b%b\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b"
    return head % (begin, authority, lines, request_id.encode("ascii"), len(body), body)


def python_stamped(first: Stamped) -> Stamped:
    """Return another object of the same class, its slots holding what those of the first one do."""
    made: Stamped = object.__new__(type(first))
    for name in _slots(type(made)):  # type: ignore[arg-type]  # any class can be hashed
        setattr(made, name, getattr(first, name))
    return made


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in each.__dict__.get("__slots__", ()))


NATIVE: Any = core("wire")

if TYPE_CHECKING or NATIVE is None:
    Pattern = PythonPattern
    own_lines, whole_answer, whole_request = python_own_lines, python_answer, python_request
    stamped = python_stamped
else:
    Pattern = NATIVE.Pattern
    own_lines, whole_answer, whole_request = NATIVE.own_lines, NATIVE.answer, NATIVE.request
    stamped = NATIVE.stamped
