"""Sockets of an engine that the agent starts: free, apart for all ranks, and nobody else's where that can be."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replica.agent import engine_sockets
from replica.agent.engine_sockets import choose

FOLDER = Path("/run/k")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that somebody listens on, from which free ones are looked for."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = int(server.getsockname()[1])
        monkeypatch.setattr(engine_sockets, "FIRST_PORT", port)
        yield port


def port_of(address: str) -> int:
    """The port of a tcp:// address."""
    return int(address.rpartition(":")[2])


def test_one_rank_alone_has_sockets_that_no_other_machine_reaches() -> None:
    """In the agent's own folder, short enough for any system."""
    sockets = choose(1, FOLDER)
    assert sockets.bound == sockets.reached == ("ipc:///run/k/events", "ipc:///run/k/replay")


def test_ports_of_ranks_and_their_replays_never_collide(taken: int) -> None:
    """Rank r is on port + r on both: of eight ranks all sixteen differ, and none is taken."""
    sockets = choose(8, FOLDER)
    events, replay = map(port_of, sockets.reached)
    ports = {events + rank for rank in range(8)} | {replay + rank for rank in range(8)}
    assert len(ports) == 16
    assert taken not in ports
    assert all(re.match(r"tcp://\*:\d+\Z", address) for address in sockets.bound)
    assert all(address.startswith("tcp://127.0.0.1:") for address in sockets.reached)


def test_without_a_folder_one_rank_has_ports_too(taken: int) -> None:
    """A file system that nothing can be written to, or a name that no socket takes."""
    sockets = choose(1, None)
    events, replay = map(port_of, sockets.reached)
    assert replay == events + 1
    assert taken not in (events, replay)


def test_the_operators_addresses_are_taken() -> None:
    """As the agent reaches them; the engine binds there. A replay that is not named lies behind all ranks' events."""
    sockets = choose(4, FOLDER, "tcp://127.0.0.1:6000")
    assert sockets.bound == ("tcp://*:6000", "tcp://*:6004")
    assert sockets.reached == ("tcp://127.0.0.1:6000", "tcp://127.0.0.1:6004")
    both = choose(1, FOLDER, "tcp://127.0.0.1:6000", "ipc:///r")
    assert both.reached == ("tcp://127.0.0.1:6000", "ipc:///r")
    assert choose(1, FOLDER, "ipc:///e").bound == ("ipc:///e", "ipc:///e.replay")


def test_no_free_ports_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine would fail at its first bind."""
    monkeypatch.setattr(engine_sockets, "FIRST_PORT", 65_530)
    with pytest.raises(OSError, match="no 40 free ports"):
        choose(20, FOLDER)
