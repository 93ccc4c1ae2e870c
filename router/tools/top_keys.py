"""Keys of a terminal, one by one, without waiting for Enter."""

from __future__ import annotations

import os
import select
import termios
import tty
from types import TracebackType

ESCAPED = {
    b"[A": "up",
    b"[B": "down",
    b"OA": "up",
    b"OB": "down",
    b"[5~": "page-up",
    b"[6~": "page-down",
    b"[H": "home",
    b"[F": "end",
}
ESCAPE_WAIT_S = 0.05
"""The rest of an escape sequence comes with its first byte; a bare Escape is followed by nothing."""


class Keys:
    """Reads keys while it is entered; leaves the terminal as it was."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Keys:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, wait_s: float) -> str:
        """Return the next key within `wait_s`: a character or a name of `ESCAPED`; empty: none."""
        if not self._is_there(wait_s):
            return ""
        data = os.read(self._descriptor, 1)
        if not data:
            return "q"  # the terminal is gone
        if data != b"\x1b":
            return "ctrl-c" if data == b"\x03" else data.decode("latin-1")
        rest = b""
        while self._is_there(ESCAPE_WAIT_S) and len(rest) < 4:
            rest += os.read(self._descriptor, 1)
            if rest in ESCAPED:
                return ESCAPED[rest]
        return ""

    def _is_there(self, wait_s: float) -> bool:
        return bool(select.select([self._descriptor], [], [], wait_s)[0])
