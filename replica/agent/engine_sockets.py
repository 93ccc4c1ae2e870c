"""Which sockets an engine that the agent starts publishes on."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path

from replica.agent.engine_flags import Sockets

FIRST_PORT = 5557
"""vLLM's own default. Where it is taken, as by an engine beside this one, the next free ones above it."""
_LAST_PORT = 65_535
_TCP = re.compile(r"tcp://.*:(\d+)\Z", re.ASCII)


def choose(ranks: int, folder: Path | None, events: str | None = None, replay: str | None = None) -> Sockets:
    """Return the sockets of an engine of so many data-parallel ranks.

    Args:
        folder: Where one rank alone has its sockets: the agent's and its engine's alone. None: at ports.
        events: Address that the operator names (`--kv-events`), or None.
        replay: The same for the replay (`--kv-replay`).

    Raises:
        OSError: No ports are free.
    """
    if events is None and ranks == 1 and folder is not None:
        events = f"ipc://{folder / 'events'}"
        replay = replay or f"ipc://{folder / 'replay'}"
    elif events is None:
        events = f"tcp://127.0.0.1:{_free_ports(ranks if replay else 2 * ranks)}"
    if replay is None:
        port = _TCP.match(events)
        replay = f"{events}.replay" if port is None else f"tcp://127.0.0.1:{int(port[1]) + ranks}"
    # To an address without a wildcard vLLM would connect, where nobody listens.
    bound = [_TCP.sub(r"tcp://*:\1", address) for address in (events, replay)]
    return Sockets((bound[0], bound[1]), (events, replay))


def _free_ports(count: int) -> int:
    """Return the first of so many ports in a row that nobody listens on now."""
    first = FIRST_PORT
    while first + count <= _LAST_PORT:
        taken = next((port for port in range(first + count - 1, first - 1, -1) if not _is_free(port)), None)
        if taken is None:
            return first
        first = taken + 1
    raise OSError(f"no {count} free ports in a row from {FIRST_PORT} on")


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
