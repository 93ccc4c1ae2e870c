"""The Valkey that agents and routers share, and those that take its place."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.tools.chaos.processes import free_port
from router.tools.local_valkey import valkey_command
from router.tools.processes import Child, StartError

START_TIMEOUT_S = 30.0


class Valkeys:
    """One serves at a time.

    Attributes:
        port: Of the one that counts now.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.port = 0
        self._folder = folder
        self._rng = rng
        self._current: Child | None = None
        self._running: list[Child] = []
        self._started = 0

    def children(self) -> list[Child]:
        """Return every process that may run."""
        return list(self._running)

    async def start(self) -> None:
        """Start the first one."""
        self._current, self.port = await self._serve(free_port(self._rng))

    async def kill(self) -> None:
        """SIGKILL: what it held is lost."""
        await self._kill(self._child())

    async def restart(self) -> None:
        """Start one at the same address."""
        self._current, self.port = await self._serve(self.port)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._child().signal(number)

    async def empty(self) -> None:
        """FLUSHALL."""
        async with _client(self.port) as client:
            await client.flushall()

    async def replace(self) -> Child:
        """Let another, empty one count; return the one before, which still runs."""
        before = self._child()
        self._current, self.port = await self._serve(free_port(self._rng))
        return before

    async def follow(self) -> tuple[Child, int]:
        """Start a replica of the one that counts, and wait until it has all of it; return it and its port."""
        async with _client(self.port) as client:
            await client.config_set("repl-diskless-sync-delay", 0)
        child, port = await self._serve(free_port(self._rng))
        async with _client(port) as client:
            await client.replicaof("127.0.0.1", self.port)
            deadline = time.monotonic() + START_TIMEOUT_S
            while (await client.info("replication"))["master_link_status"] != "up":
                if time.monotonic() > deadline:
                    raise StartError("the Valkey replica did not come up to date")
                await asyncio.sleep(0.05)
        return child, port

    async def forsake(self, port: int) -> None:
        """Let a replica follow no longer: what is written from now on, it misses."""
        async with _client(port) as client:
            await client.replicaof("NO", "ONE")

    def promote(self, child: Child, port: int) -> Child:
        """Let it count; return the one before, which still runs."""
        before = self._child()
        self._current, self.port = child, port
        return before

    async def retire(self, child: Child) -> None:
        """End one that counts no longer."""
        await self._kill(child)

    async def _serve(self, port: int) -> tuple[Child, int]:
        self._started += 1
        child = Child(f"valkey.{self._started}", valkey_command(port, self._folder), self._folder)
        self._running.append(child)
        deadline = time.monotonic() + START_TIMEOUT_S
        async with _client(port) as client:
            while True:
                with contextlib.suppress(RedisError, OSError):
                    if (await client.info("server"))["process_id"] == child.pid:
                        return child, port
                if child.exit_code() is not None or time.monotonic() > deadline:
                    raise StartError(f"Valkey did not start: {child.errors()}")
                await asyncio.sleep(0.02)

    async def _kill(self, child: Child) -> None:
        child.signal(signal.SIGKILL)
        await asyncio.to_thread(child.wait, START_TIMEOUT_S)
        self._running.remove(child)

    def _child(self) -> Child:
        if self._current is None:
            raise StartError("Valkey was never started")
        return self._current


def _client(port: int) -> Any:
    return Redis(host="127.0.0.1", port=port, socket_timeout=5.0)
