"""Lines written by one thread in batches: neither a system call nor a reader that takes nothing is waited for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

WRITE_EVERY_S = 0.05
MAX_LINES = 50_000
"""Lines that wait: some 20 MB of an access log."""
CLOSE_S = 5.0
"""For how long `close` waits for a reader that takes nothing."""
_log = logging.getLogger(__name__)


class LineWriter:
    """Takes lines from the event loop's thread. Past `MAX_LINES` they are lost, and counted.

    Args:
        name: Of the thread.
        put: Writes a text, from the writer's thread; what it raises of OSError and ValueError ends the writing.
        lost_note: Makes a line that tells of so many lost ones; None: nothing is told.
        render: Makes a line of what `add_raw` was given, at once.
    """

    def __init__(
        self,
        name: str,
        put: Callable[[str], None],
        lost_note: Callable[[int], str] | None = None,
        render: Callable[[Any], str] = str,
    ) -> None:
        self.lost = 0
        """Lines that found no place, or could not be made, since the writer told of such."""
        self.broken = False
        """Writing failed: no more is taken."""
        self._name = name
        self._put = put
        self._lost_note = lost_note
        self._render = render
        self._lines: list[str] = []
        self._waiting = threading.Event()
        self._closing = threading.Event()
        self._writing = threading.Lock()
        self._told = False
        self._writer: threading.Thread | None = None

    def add_raw(self, made_from: tuple[Any, ...]) -> None:
        """Write the line that `render` makes of this, soon."""
        if line := self._rendered(made_from):
            self.add(line)

    def add(self, line: str) -> None:
        """Write a line, with its newline, soon."""
        lines = self._lines
        if self.broken or self._closing.is_set():
            return
        if len(lines) >= MAX_LINES:
            self.lost += 1
            return
        lines.append(line)
        if len(lines) == 1:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_batches, name=self._name, daemon=True)
                self._writer.start()
            self._waiting.set()

    def close(self) -> None:
        """Write all that waits; no more is taken. May block: not for the loop."""
        self._closing.set()
        self._waiting.set()
        if self._writer is not None:
            self._writer.join(CLOSE_S)

    def flush(self) -> None:
        """Write what waits now, by the caller."""
        with self._writing:
            count = len(self._lines)
            batch = self._lines[:count]
            # An append between these two goes to the end, which stays.
            del self._lines[:count]
            lost = self.lost
            if lost:
                self.lost -= lost
                if self._lost_note is not None:
                    batch.append(self._lost_note(lost))
            if not batch:
                return
            try:
                self._put("".join(batch))
            except (OSError, ValueError):
                # A closed or full output must not fail a request that was served.
                self.broken = True

    def _rendered(self, made_from: Any) -> str:
        """Return the line, or nothing where it can't be made: neither a request nor other lines end with it."""
        try:
            return self._render(made_from)
        except Exception:
            if not self._told:
                self._told = True
                _log.exception(
                    "internal error while making a line of the %s; it counts as lost, and so do more of them",
                    self._name,
                )
            self.lost += 1
            return ""

    def _write_batches(self) -> None:
        """The writer: sleeps while nothing waits."""
        while True:
            self._waiting.wait()
            self._closing.wait(WRITE_EVERY_S)
            self._waiting.clear()
            self.flush()
            if self._lines:
                self._waiting.set()  # a line came while the batch was taken out
            elif self._closing.is_set():
                return
