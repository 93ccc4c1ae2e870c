"""One worker as its supervisor sees it: a process, and the life it leads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from router.errors import Problem
from router.workers.control import Control


class WorkerState(StrEnum):
    """What a worker does."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """It drains."""
    AWAY = "away"
    """Its process has ended, and the next one is not due."""


class Worker:
    """A seat and the processes that take it one after the other.

    Attributes:
        number: From 0.
        ready: What the process said when it was ready.
        problems: Why it could not start, where its configuration was the reason.
        process: The present one.
    """

    def __init__(self, number: int, heard: Callable[[Worker, str, dict[str, Any]], None]) -> None:
        self.number = number
        self.state = WorkerState.AWAY
        self.ready: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.process: asyncio.subprocess.Process | None = None
        self._heard = heard
        self._control: Control | None = None

    @property
    def admin_name(self) -> str:
        """Name of its admin's socket, in the crew's folder."""
        return f"worker-{self.number}.sock"

    async def live(self, spec: dict[str, Any], sockets: list[list[socket.socket]], load: int) -> int:
        """Run a process to its end; return its exit code, negative for a signal."""
        ours, theirs = socket.socketpair()
        self.state, self.problems = WorkerState.STARTING, []
        try:
            with theirs:
                fds = [[each.fileno() for each in seat] for seat in sockets]
                whole = {**spec, "number": self.number, "control": theirs.fileno(), "sockets": fds, "load": load}
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "router.workers.process",
                    json.dumps({**whole, "parent": os.getpid()}),
                    pass_fds=[theirs.fileno(), load, *(fd for seat in fds for fd in seat)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # the ready line is the supervisor's
                )
        except BaseException:
            ours.close()
            self.state = WorkerState.AWAY
            raise
        control = self._control = await Control.over(ours)
        try:
            while (said := await control.hear()) is not None:
                self._take(said)
            return await self.process.wait()
        finally:
            control.close()
            self._control = None
            self.state = WorkerState.AWAY
            self._end()
            await self.process.wait()

    def order(self, word: str, **more: Any) -> None:
        """Tell the process to do something; nothing happens when there is none."""
        if self._control is not None:
            self._control.say(word, **more)

    def kill(self) -> None:
        """End the process at once."""
        self._end()

    def _end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)

    def _take(self, said: dict[str, Any]) -> None:
        word = said["word"]
        if word == "ready":
            self.state = WorkerState.SERVING
            self.ready = {key: value for key, value in said.items() if key != "word"}
        elif word == "leaving":
            self.state = WorkerState.LEAVING
        elif word == "failed":
            self.problems = [Problem(*item) for item in said["problems"]]
        self._heard(self, word, said)


def socket_path(folder: Path, worker: Worker) -> Path:
    """Return where a worker's admin answers."""
    return folder / worker.admin_name
