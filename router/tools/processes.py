"""Child processes that never outlive us.

A child dies in one of three ways: `stop` ends it, an exception or Ctrl-C leads to `stop`, or we are killed and the
kernel ends it (Linux: PR_SET_PDEATHSIG). Each child leads a process group of its own, so that a terminal's Ctrl-C
reaches us alone and we end the children in order, and so that what a child started ends with it.

Output goes to files rather than pipes: no thread has to drain them, a child never blocks on a full one, and when it
fails to start there is something to show.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BOUND_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG, linux/prctl.h
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes the command it is given, after asking the kernel to kill it when its parent dies. A program of its own rather
than a preexec_fn, which is not safe in a process with threads."""
POLL_S = 0.02
TAIL_LINES = 15


class StartError(Exception):
    """A process did not start; the message holds the end of what it wrote to standard error."""


def end_with_parent() -> None:
    """Have the kernel send us SIGTERM when the process that started us ends; nothing where the kernel can't do that."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # 1: PR_SET_PDEATHSIG, linux/prctl.h


def _bound_to_us(command: Sequence[str]) -> list[str]:
    """Return the command that starts `command` so that it dies with us; unchanged where the kernel can't do that."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", BOUND_TO_PARENT, str(os.getpid()), *command]


class Child:
    """One running process.

    Start it from the main thread: the kernel's promise is bound to the thread that started the child, not to the
    process.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, environ: dict[str, str] | None = None) -> None:
        """Start `command`; its output goes to `folder`/NAME.out and NAME.err."""
        self.name = name
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                _bound_to_us(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """The process id, also its process group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return how it ended, or None while it runs."""
        return self._process.poll()

    def ready_line(self) -> dict[str, Any] | None:
        """Return the first line of its output as JSON once it is complete, else None.

        Raises:
            StartError: It ended before, or wrote something else.
        """
        ended = self.exit_code() is not None  # before reading: what it wrote before its end is then all there
        line, complete, _ = self._out.read_bytes().partition(b"\n")
        if not complete:
            if ended:
                raise StartError(self.failure())
            return None
        try:
            ready = json.loads(line)
        except ValueError:
            ready = None
        if not isinstance(ready, dict):
            raise StartError(f"{self.name} wrote something else than a line of JSON when ready: {line[:200]!r}")
        return ready

    def errors(self) -> str:
        """Return the end of what it wrote to standard error, or else (Valkey) to standard output."""
        texts = (path.read_text(errors="replace").splitlines() for path in (self._err, self._out))
        return "\n".join(next(filter(None, texts), [])[-TAIL_LINES:])

    def written_bytes(self) -> int:
        """Return how much it has written to standard output and standard error together."""
        return self._out.stat().st_size + self._err.stat().st_size

    def failure(self) -> str:
        """Tell in words that it ended, and show its last lines."""
        return f"{self.name} ended with exit code {self.exit_code()}:\n{self.errors() or '(it wrote nothing)'}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and all that it started; nothing happens when they are gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it at once, without a chance to clean up, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; return the exit code, or None when it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def stop_all(children: Sequence[Child], grace_s: float = 5.0) -> None:
    """End processes: SIGTERM to all at once, SIGKILL to what is left after `grace_s` seconds together."""
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for child in children:
        child.wait(max(0.0, deadline - time.monotonic()))
        child.signal(signal.SIGKILL)  # the group: what it left behind too
        child.wait(grace_s)


def wait_for(what: str, condition: Callable[[], Any], children: Sequence[Child], timeout_s: float) -> Any:
    """Poll until `condition()` returns something true, and return it.

    Raises:
        StartError: It did not within `timeout_s`, or one of `children` ended meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        for child in children:
            if child.exit_code() is not None:
                raise StartError(child.failure())
        if time.monotonic() > deadline:
            raise StartError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)
