"""One process of the fleet: it is struck, and comes back under the same name and addresses."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.tools.processes import Child, StartError

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 25.0
"""A router drains for 10 s at most, and machines are slow now and then."""
_POLL_S = 0.02
_EPHEMERAL = 32_768


@dataclass(slots=True)
class _Outage:
    killed: bool
    until_s: float = float("inf")


class Outages:
    """Who was out when: what tells a request that was ours to save from one that nobody could."""

    def __init__(self) -> None:
        self._outages: dict[str, list[_Outage]] = {}

    def begin(self, name: str, *, killed: bool) -> None:
        """It is struck now: by SIGKILL, or asked to end."""
        self._outages.setdefault(name, []).append(_Outage(killed))

    def end(self, name: str) -> None:
        """It serves again."""
        self._outages[name][-1].until_s = time.monotonic()

    def touched(self, name: str, since_s: float, *, killed: bool = False) -> bool:
        """Tell whether it was out at any time since then.

        Args:
            killed: Only where it was killed.
        """
        return any(out.until_s >= since_s and (out.killed or not killed) for out in self._outages.get(name, ()))


class ChaosProcess:
    """A process that prints a line of JSON when it is ready.

    Args:
        name: Unique in the fleet, as `engine-0`.
        command: Starts it, each time.
        takes_traffic: Tells whether it may take traffic, after its ready line; None: it may at once.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        outages: Outages,
        takes_traffic: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.name = name
        self._command = command
        self._folder = folder
        self._outages = outages
        self._takes_traffic = takes_traffic
        self._starts = 0
        self._child: Child | None = None
        self.unexpected: list[str] = []
        """Ends that no fault caused, and those that took too long."""

    def spawn(self) -> None:
        """Start it; `until_ready` waits for it."""
        self._starts += 1
        self._child = Child(f"{self.name}.{self._starts}", self._command, self._folder)

    async def until_ready(self) -> None:
        """Wait for its ready line, and then until it takes traffic.

        Raises:
            StartError: It ended, or took longer than `START_TIMEOUT_S` since it was last started, which another fault
                may have had to do meanwhile.
        """
        starts, deadline = 0, 0.0
        while not await self._is_ready():
            if starts != self._starts:
                starts, deadline = self._starts, time.monotonic() + START_TIMEOUT_S
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} is not ready after {START_TIMEOUT_S:g} s: {self._running().errors()}")
            await asyncio.sleep(_POLL_S)

    async def _is_ready(self) -> bool:
        if self._running().ready_line() is None:
            return False
        return self._takes_traffic is None or await self._takes_traffic()

    async def kill(self) -> None:
        """SIGKILL, from now on it is out."""
        self._outages.begin(self.name, killed=True)
        self.signal(signal.SIGKILL)
        await self._ended()

    async def end(self) -> None:
        """SIGTERM, and SIGKILL when that does not end it in time, which is noted."""
        self._outages.begin(self.name, killed=False)
        self.signal(signal.SIGTERM)
        if not await self._ended():
            self.unexpected.append(f"{self.name} did not end within {END_TIMEOUT_S:g} s of SIGTERM")
            self.signal(signal.SIGKILL)
            await self._ended()

    async def restart(self) -> None:
        """Start it again where it was; it is back when it is ready."""
        self.spawn()
        await self.until_ready()
        self._outages.end(self.name)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._running().signal(number)

    def look(self) -> None:
        """Note an end that nobody asked for. Call it while no fault strikes it."""
        if self._running().exit_code() is not None:
            self.unexpected.append(self._running().failure())

    @property
    def child(self) -> Child:
        """The process as it runs now."""
        return self._running()

    def _running(self) -> Child:
        if self._child is None:
            raise StartError(f"{self.name} was never started")
        return self._child

    async def _ended(self) -> bool:
        return await asyncio.to_thread(self._running().wait, END_TIMEOUT_S) is not None


def free_port(rng: random.Random) -> int:
    """Return a port that nobody listens at, below those that the kernel gives to outgoing connections.

    A server that is away for some seconds then finds its port free when it is back.
    """
    while True:
        port = rng.randrange(10_000, _EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
