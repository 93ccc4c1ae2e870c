"""Other routers in front of the same simulated fleet, where they are installed: each by its own default rule.

    pip install sglang-router vllm-router

They are found on PATH. What they do not tell (which replica answered, a ledger) is left empty, or taken from the
engines' own counters.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.errors import ConfigurationError, Problem
from router.tools.local_fleet import START_TIMEOUT_S, EngineOptions, LocalFleet, Server
from router.tools.processes import wait_for

ANSWERS = ("/health", "/v1/models")
"""What answers 200 once a peer knows its replicas."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another router.

    Attributes:
        name: Of its command and its package.
        words: What follows the command.
    """

    name: str
    words: tuple[str, ...] = ()

    def path(self) -> str:
        """Return where its command is.

        Raises:
            ConfigurationError: It is not installed.
        """
        found = shutil.which(self.name)
        if found is None:
            raise ConfigurationError([Problem("--peer", f"{self.name} is not on PATH", f"pip install {self.name}")])
        return found

    def version(self) -> str:
        """Return the version of its package, asked of the Python that its command runs in; empty where none tells."""
        path = Path(self.path())
        with path.open(encoding="utf-8", errors="replace") as lines:
            found = re.match(r"#!(\S+)", lines.readline())
        if found is None:
            return ""
        told = [found[1], "-c", "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))", self.name]
        return subprocess.run(told, capture_output=True, text=True, check=False).stdout.strip()

    def command(self, port: int, metrics_port: int, engines: Sequence[str]) -> list[str]:
        """Return what starts it, with its rule for prefix caches (the default of both)."""
        return [
            *(self.path(), *self.words, "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
            *("--worker-urls", *engines),
        ]


PEERS = {peer.name: peer for peer in (Peer("sglang-router", ("launch",)), Peer("vllm-router"))}


class PeerFleet(LocalFleet):
    """The engines of a local fleet, with a peer in front of them instead of our router, agents and Valkey."""

    def __init__(self, peer: Peer, engine: EngineOptions, replicas: int) -> None:
        super().__init__(engine, replicas, agents=False)
        self._peer = peer

    def _start(self) -> None:
        self._await_engines(self._spawn_engines())
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = self._peer.command(port, free_port(), [engine.http for engine in self.engines])
        self._router = Server(self._spawn(self._peer.name, command), url)
        wait_for(f"{self._peer.name} answers", lambda: _answers(url), self.children, START_TIMEOUT_S)


def free_port() -> int:
    """Return a port that nobody listens on: peers do not tell which one they took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        for path in ANSWERS:
            with urllib.request.urlopen(url + path, timeout=2):  # noqa: S310
                pass
    except (urllib.error.URLError, OSError):
        return False
    return True
