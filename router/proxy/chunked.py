"""The chunked coding of request bodies (RFC 9112, section 7.1), decoded strictly.

Strict because leniency here is how requests are smuggled: what two parsers end at different bytes, a third party can
use. So: CRLF alone ends a line, sizes are 1 to 16 hexadecimal digits and nothing else, extensions and trailers are
bounded, checked, and dropped (the engine gets a Content-Length).
"""

from __future__ import annotations

import re
from enum import Enum

from router.errors import MalformedRequestError

LINE_BYTES = 4_096
"""Longest chunk-size line with its extensions, and longest trailer line."""
TRAILER_BYTES = 16 * 1_024
"""All trailers of a body together."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"[\t\x20\x21\x23-\x5b\x5d-\x7e]*"'
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;" + _TOKEN + rb"(?:=(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?)*")
_TRAILER = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")


class _State(Enum):
    SIZE = 0
    DATA = 1
    DATA_END = 2
    TRAILER = 3
    DONE = 4


class ChunkedBody:
    """Decodes one body; split anywhere."""

    __slots__ = ("_left", "_line", "_state", "_trailer_bytes")

    def __init__(self) -> None:
        self._state = _State.SIZE
        self._left = 0
        self._line = b""
        self._trailer_bytes = 0

    @property
    def done(self) -> bool:
        """Whether the last chunk and the trailers were read."""
        return self._state is _State.DONE

    @property
    def left_bytes(self) -> int:
        """What the chunk that came last has announced and not sent yet."""
        return self._left

    def feed(self, data: bytes, at: int = 0) -> tuple[list[bytes], int]:
        """Take in bytes from a place on.

        Returns:
            The pieces of the body in them, and the place up to where they belong to this body: what follows is the
            next request.

        Raises:
            MalformedRequestError: They are not chunked coding.
        """
        pieces: list[bytes] = []
        while at < len(data) and self._state is not _State.DONE:
            if self._state is _State.DATA:
                piece = data[at : at + self._left]
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
                if self._left == 0:
                    self._state = _State.DATA_END
                continue
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end + 1
            self._line += data[at:stop]
            at = stop
            if end >= 0:
                line, self._line = self._line, b""
                self._take_line(line)
            elif len(self._line) > (2 if self._state is _State.DATA_END else LINE_BYTES):
                raise MalformedRequestError("a line of the chunked body is too long or its end is missing")
        return pieces, at

    def _take_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n") or len(line) > LINE_BYTES:
            raise MalformedRequestError("a line of the chunked body does not end with CRLF, or is too long")
        text = line[:-2]
        if self._state is _State.SIZE:
            match = _SIZE.fullmatch(text)
            if match is None:
                raise MalformedRequestError("a chunk size is malformed")
            self._left = int(match[1], 16)
            self._state = _State.DATA if self._left else _State.TRAILER
        elif self._state is _State.DATA_END:
            if text:
                raise MalformedRequestError("a chunk is longer than its size")
            self._state = _State.SIZE
        elif not text:
            self._state = _State.DONE
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILER_BYTES or _TRAILER.fullmatch(text) is None:
                raise MalformedRequestError("a trailer of the chunked body is malformed or too long")
