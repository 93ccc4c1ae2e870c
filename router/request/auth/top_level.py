"""The keys of a JSON object as they are spelled. A parser tells neither repeats nor escapes.

Only for text that a parser has accepted: what is no JSON is not found out here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_STEPS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)
"""A whole string, or a bracket: all that depth depends on."""
_COLON = re.compile(rb"[ \t\r\n]*+:")


def spelled_keys(text: bytes) -> Iterator[bytes]:
    """Yield the keys of the outermost object, quotes and escapes included, in order and with repeats.

    Args:
        text: A JSON object in UTF-8.
    """
    depth = 0
    for step in _STEPS.finditer(text):
        mark = text[step.start()]
        if mark == 0x22:
            if depth == 1 and _COLON.match(text, step.end()):
                yield step[0]
        elif mark in b"{[":
            depth += 1
        else:
            depth -= 1


def spelled_values(text: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield each key of the outermost object whose value is a string, with where that stands, quotes included."""
    depth, key, colon_end = 0, b"", -1
    for step in _STEPS.finditer(text):
        mark = text[step.start()]
        if mark == 0x22:
            if depth != 1:
                continue
            colon = _COLON.match(text, step.end())
            if colon is not None:
                key, colon_end = step[0], colon.end()
            elif key and not text[colon_end : step.start()].strip():
                yield key, step.span()
                key = b""
        elif mark in b"{[":
            depth += 1
        else:
            depth -= 1
