"""The engine, where the agent starts it: `warmroute agent ... -- ENGINE COMMAND`."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence

from replica.errors import UsageError

OWN_VARIABLES = "WARMROUTE_AGENT_"
"""The agent's environment holds Redis' password and the secret of leases: none of the engine's business."""


class EngineProcess:
    """A running engine.

    Args:
        process: What was started.
    """

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str] = os.environ) -> EngineProcess:
        """Start the command; what it writes goes where the agent's own output goes.

        Raises:
            UsageError: It can't be started.
        """
        own = {name: value for name, value in environment.items() if not name.startswith(OWN_VARIABLES)}
        try:
            # A session of its own: a terminal's Ctrl-C reaches the agent alone, which passes it on in order.
            process = await asyncio.create_subprocess_exec(*command, env=own, start_new_session=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no command"
            raise UsageError([f"engine command: can't start {command[0]!r} ({reason})"]) from error
        return cls(process)

    def tell(self, number: int) -> None:
        """Pass a signal on, if it still runs."""
        if self._process.returncode is None:
            self._process.send_signal(signal.Signals(number))

    async def ended(self) -> int:
        """Wait for its end; return its status, 128 + N where signal N ended it, as shells do."""
        status = await self._process.wait()
        return status if status >= 0 else 128 - status
