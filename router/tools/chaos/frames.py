"""Messages on a ZMTP 3 connection, so that a relay can lose, double and reorder whole ones (rfc.zeromq.org/spec/23).

After a greeting of 64 bytes, a connection is frames: flags (1 more follows, 2 long, 4 command), size in 1 or 8 bytes,
body. A message is frames up to one without `more`.
"""

from __future__ import annotations

from collections.abc import Iterator

_GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4


class MessageReader:
    """Cuts what an engine sends into (is a message, bytes)."""

    def __init__(self) -> None:
        self._data = b""
        self._message = b""
        self._greeting_left = _GREETING_BYTES

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Take bytes; yield what is complete. Greeting and commands are no messages."""
        self._data += data
        if self._greeting_left:
            part, self._data = self._data[: self._greeting_left], self._data[self._greeting_left :]
            self._greeting_left -= len(part)
            yield False, part
        while (size := self._frame_bytes()) is not None:
            frame, self._data = self._data[:size], self._data[size:]
            if frame[0] & _COMMAND:
                yield False, frame
                continue
            self._message += frame
            if not frame[0] & _MORE:
                message, self._message = self._message, b""
                yield True, message

    def _frame_bytes(self) -> int | None:
        data = self._data
        head = 9 if data and data[0] & _LONG else 2
        if len(data) < head:
            return None
        size = head + int.from_bytes(data[1:head], "big")
        return size if len(data) >= size else None


class Mangler:
    """What is done to the messages of one relay, over all its connections."""

    def __init__(self) -> None:
        self.drop = 0
        """Messages to lose."""
        self.drop_all = False
        """Lose every message."""
        self.double = 0
        """Messages to send twice."""
        self.reverse = 0
        """Messages to hold until so many are there, and to send last first."""
        self._held: list[bytes] = []
        self.struck = 0
        """Messages that something was done to."""

    def pass_on(self, message: bytes) -> list[bytes]:
        """Return what to send for a message that came."""
        if self.drop or self.drop_all:
            self.drop = max(0, self.drop - 1)
            self.struck += 1
            return []
        if self.double:
            self.double -= 1
            self.struck += 1
            return [message, message]
        if self.reverse:
            self._held.append(message)
            self.struck += 1
            if len(self._held) < self.reverse:
                return []
            return self.release()
        return [message]

    def reset(self) -> None:
        """Do nothing more to what comes; what is held stays until `release`."""
        self.drop = self.double = 0
        self.drop_all = False

    def release(self) -> list[bytes]:
        """Hold nothing any more; return what was held, last first."""
        held, self._held, self.reverse = self._held[::-1], [], 0
        return held

    def connection_lost(self) -> None:
        """What was held went with the connection."""
        self._held.clear()
