"""How a supervisor and a worker speak: lines of JSON over a pair of sockets that only the two have.

A worker says `ready`, `failed` (with problems), `leaving`, `reloaded` (with its report). A supervisor orders `reload`
(with a file), `drain`, `hurry`, `stop`, `cover` and `uncover` (with the number of a worker whose sockets it shall or
shall no longer accept from). The end of the stream tells either that the other one is gone.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

MAX_LINE_BYTES = 2**20


class Control:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Control:
        """Speak over one of the two sockets."""
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end, limit=MAX_LINE_BYTES))

    def say(self, word: str, **more: Any) -> None:
        """Say something; nothing happens when the other one is gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"word": word, **more}).encode() + b"\n")

    async def hear(self) -> dict[str, Any] | None:
        """Return what the other one says next; None when it is gone."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Say no more."""
        self._writer.close()
