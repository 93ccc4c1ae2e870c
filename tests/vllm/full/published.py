"""What an engine publishes about its cache, read by code of its own: nothing of Warmroute decodes it here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq


@dataclass(frozen=True)
class Block:
    """One block as it was announced.

    Attributes:
        parent: The hash before it, as bytes; None at the root.
        token_ids: Its tokens.
        extra_keys: As the engine publishes them: untagged, an adapter by its name alone.
    """

    parent: bytes | None
    token_ids: tuple[int, ...]
    extra_keys: tuple[Any, ...]


@dataclass
class Published:
    """All blocks that an engine has announced, by their hashes; those of 64 bits as 8 bytes, big-endian."""

    blocks: dict[bytes, Block] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    _context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)

    def connect(self, endpoint: str) -> None:
        """Listen to an engine's events."""
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint)
        self._next: int | None = None

    def close(self) -> None:
        """Stop listening."""
        self._context.destroy(linger=0)

    def wait(self, timeout_s: float) -> list[bytes]:
        """Return the hashes that came and were not known; waits at most so long for the first message."""
        new: list[bytes] = []
        if not self._socket.poll(int(timeout_s * 1000)):
            return new
        while self._socket.poll(0):
            _, sequence, payload = self._socket.recv_multipart()
            number = int.from_bytes(sequence, "big")
            if self._next is not None and number != self._next:
                self.problems.append(f"events {self._next} to {number - 1} were lost")
            self._next = number + 1
            for event in msgspec.msgpack.decode(payload)[1]:
                new += self._apply(event)
        return new

    def _apply(self, event: dict[str, Any]) -> list[bytes]:
        if event["type"] != "BlockStored":
            self.problems.append(f"an event that does not belong here: {event['type']}")
            return []
        hashes, size = [_bytes(value) for value in event["block_hashes"]], event["block_size"]
        keys = event.get("extra_keys") or [None] * len(hashes)
        tokens = event["token_ids"]
        parent = event.get("parent_block_hash")
        before = None if parent is None else _bytes(parent)
        new = []
        for place, name in enumerate(hashes):
            block = Block(before, tuple(tokens[place * size : (place + 1) * size]), tuple(keys[place] or ()))
            if name not in self.blocks:
                self.blocks[name] = block
                new.append(name)
            elif self.blocks[name] != block:
                self.problems.append(f"{name.hex()} was announced for two different blocks")
            before = name
        return new

    def path(self, name: bytes) -> list[bytes]:
        """Return the hashes from a root to a block."""
        found = [name]
        while (parent := self.blocks[found[-1]].parent) is not None:
            found.append(parent)
        return found[::-1]

    def tokens(self, path: list[bytes]) -> list[int]:
        """Return the tokens of blocks, one after the other."""
        return [token for name in path for token in self.blocks[name].token_ids]


class Held:
    """What an engine's ranks hold by their own account: every event of every rank, added up.

    Attributes:
        problems: What can't be: lost messages, more removed than stored.
        roots: Tokens of all first blocks that were stored, of any rank.
    """

    def __init__(self, first_port: int, ranks: int = 1) -> None:
        """Know of ports in a row, one for each rank."""
        self.problems: list[str] = []
        self.roots: set[tuple[int, ...]] = set()
        self._ports = range(first_port, first_port + ranks)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def begin(self) -> None:
        """Forget all and listen, before an engine starts or starts again: from its first event on."""
        for socket in self._sockets:
            socket.close(linger=0)
        self._counts: list[Counter[int]] = [Counter() for _ in self._ports]
        self._next = [0 for _ in self._ports]
        self._sockets = []
        for port in self._ports:
            socket = self._context.socket(zmq.SUB)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(f"tcp://127.0.0.1:{port}")
            self._sockets.append(socket)

    def close(self) -> None:
        """Stop listening."""
        self._context.destroy(linger=0)

    def blocks(self, rank: int = 0) -> set[int]:
        """Return the hashes of the blocks that a rank holds, by what has come until now."""
        socket = self._sockets[rank]
        while socket.poll(0):
            _, sequence, payload = socket.recv_multipart()
            self._take(rank, int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)[1])
        return {block for block, count in self._counts[rank].items() if count > 0}

    def _take(self, rank: int, number: int, events: list[dict[str, Any]]) -> None:
        if number != self._next[rank]:
            self.problems.append(f"rank {rank}: event {number} came where {self._next[rank]} was due")
        self._next[rank] = number + 1
        counts = self._counts[rank]
        for event in events:
            if event["type"] == "AllBlocksCleared":
                counts.clear()
                continue
            step = 1 if event["type"] == "BlockStored" else -1
            if step > 0 and event.get("parent_block_hash") is None:
                self.roots.add(tuple(event["token_ids"][: event["block_size"]]))
            for block in event["block_hashes"]:
                counts[block] += step
                if counts[block] < 0:
                    self.problems.append(f"rank {rank}: {block:x} was removed more often than stored")


def _bytes(value: int | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.to_bytes(8, "big")
