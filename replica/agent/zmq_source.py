"""Reads an engine's event socket, and asks its replay socket for what was missed.

Frames on the SUB socket are topic, sequence (8 bytes, big-endian) and payload. A replay is asked for through a DEALER
with an empty frame and the first sequence; the answers are an empty frame and the three, ended by sequence -1. Earlier
vLLM and SGLang leave the topic out of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

_END = b"\xff" * 8
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
RECEIVE_MESSAGES = 512
"""At most so many are read at once; where fewer were, no more were there."""
_REPLAY_BATCHES = 100_000
_SOCKET_QUEUE_MESSAGES = 200_000


@dataclass(frozen=True, slots=True)
class Frame:
    """One batch as it came.

    Attributes:
        sequence: Its number in the engine's process.
        payload: Undecoded.
        received_s: `time.monotonic()` when it was read.
    """

    sequence: int
    payload: bytes
    received_s: float


class EventSource:
    """The two sockets of one unit.

    Args:
        context: ZMQ context of the process.
        events: Address of the engine's PUB socket.
        replay: Address of its ROUTER socket, or None where the engine has none.

    Attributes:
        malformed: Messages that were no frame of ours.
    """

    def __init__(self, context: zmq.asyncio.Context, events: str, replay: str | None) -> None:
        self._context = context
        self._replay_address = replay
        self.malformed = 0
        self._connects = 0
        self._sub = context.socket(zmq.SUB)
        _prepare(self._sub)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"")
        self._monitor = self._sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._sub.connect(events)
        # Reading through plain shadows of the sockets takes a message in microseconds; asyncio is for waiting alone.
        self._plain_sub: Any = zmq.Socket.shadow(self._sub.underlying)
        self._plain_monitor: Any = zmq.Socket.shadow(self._monitor.underlying)

    @property
    def has_replay(self) -> bool:
        """Whether the engine can be asked for what was missed."""
        return self._replay_address is not None

    async def connected(self, timeout_s: float) -> bool:
        """Wait for the first connection; return whether it came in time."""
        await self._monitor.poll(int(timeout_s * 1000))
        return self.connections() > 0

    def connections(self) -> int:
        """Return how often the SUB socket was connected. More than before: it lost its engine in between."""
        while True:
            try:
                parts = self._plain_monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return self._connects
            if parse_monitor_message(parts)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connects += 1

    async def receive(self, wait_s: float) -> list[Frame]:
        """Return the batches that are there, waiting at most `wait_s` for the first."""
        frames = self._drain()
        if not frames and await self._sub.poll(max(1, int(wait_s * 1000))):
            frames = self._drain()
        return frames

    def _drain(self) -> list[Frame]:
        frames: list[Frame] = []
        now = time.monotonic()
        while len(frames) < RECEIVE_MESSAGES:
            try:
                parts = self._plain_sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(parts) == 3 and len(parts[1]) == 8:
                frames.append(Frame(int.from_bytes(parts[1], "big"), parts[2], now))
            else:
                self.malformed += 1
        return frames

    async def replay(self, start: int, timeout_s: float) -> list[tuple[int, bytes]] | None:
        """Return what the engine still has from batch `start` on, or None when it does not answer to the end.

        Args:
            start: First sequence asked for; the answer may begin later, without a sign.
            timeout_s: Longest silence within the answer.
        """
        if self._replay_address is None:
            return None
        # A socket of its own for each question: what is left of an answer that came too late can't mix with the next.
        dealer = self._context.socket(zmq.DEALER)
        try:
            _prepare(dealer)
            dealer.connect(self._replay_address)
            plain: Any = zmq.Socket.shadow(dealer.underlying)
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            batches: list[tuple[int, bytes]] = []
            while len(batches) < _REPLAY_BATCHES:
                if not await dealer.poll(int(timeout_s * 1000)):
                    return None
                while True:
                    try:
                        parts = plain.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    if len(parts) not in (3, 4) or len(parts[-2]) != 8:
                        self.malformed += 1
                        return None
                    if parts[-2] == _END:
                        return batches
                    batches.append((int.from_bytes(parts[-2], "big"), parts[-1]))
            return None
        finally:
            dealer.close(linger=0)

    def close(self) -> None:
        """Close the sockets."""
        self._sub.disable_monitor()
        self._monitor.close(linger=0)
        self._sub.close(linger=0)


def _prepare(socket: zmq.asyncio.Socket) -> None:
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, _SOCKET_QUEUE_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
