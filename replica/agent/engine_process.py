"""The engine, where the agent starts it: `warmroute agent ... -- ENGINE COMMAND`."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from replica.agent import engine_sockets
from replica.agent.engine_flags import Addition, Sockets, additions
from replica.agent.engine_options import config_words, text_option
from replica.errors import UsageError

log = logging.getLogger(__name__)

PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mean the engine alone. SIGTERM and SIGINT end it, in order."""
MAX_CONFIG_BYTES = 1 << 20
MAX_FOLDER_BYTES = 95
"""A Unix socket's path has at most 107."""

OWN_VARIABLES = "WARMROUTE_AGENT_"
"""The agent's environment holds Redis' password and the secret of leases: none of the engine's business."""


class EngineProcess:
    """A running engine.

    Args:
        process: What was started.
        added: What its command was given beside its own words.
        folder: Of its sockets, where it has one; it goes with it.
    """

    def __init__(self, process: Process, added: Addition, folder: Path | None) -> None:
        self._process = process
        self._folder = folder
        self.added = added

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        *,
        as_it_is: bool = False,
        events: str | None = None,
        replay: str | None = None,
    ) -> EngineProcess:
        """Start the command; what it writes goes where the agent's own output goes.

        Args:
            as_it_is: Add nothing to it.
            events, replay: Where it is to publish, as the operator says; None: somewhere free.

        Raises:
            UsageError: It can't be started.
        """
        folder: Path | None = None

        def sockets(ranks: int) -> Sockets:
            nonlocal folder
            folder = _private_folder() if ranks == 1 and events is None else None
            return engine_sockets.choose(ranks, folder, events, replay)

        try:
            added = Addition() if as_it_is else _added(command, sockets)
            if added.words:
                log.info("the engine's command lacks what routers need: added", extra={"words": " ".join(added.words)})
            process = await cls._started([*command, *added.words], environment)
        except BaseException:
            _remove(folder)
            raise
        return cls(process, added, folder)

    @staticmethod
    async def _started(command: Sequence[str], environment: Mapping[str, str]) -> Process:
        own = {name: value for name, value in environment.items() if not name.startswith(OWN_VARIABLES)}
        try:
            # A session of its own: a terminal's Ctrl-C reaches the agent alone, which passes it on in order.
            return await asyncio.create_subprocess_exec(*command, env=own, start_new_session=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no command"
            raise UsageError([f"engine command: can't start {command[0]!r} ({reason})"]) from error

    def tell(self, number: int) -> None:
        """Pass a signal on, if it still runs."""
        if self._process.returncode is None:
            self._process.send_signal(signal.Signals(number))

    async def ended(self) -> int:
        """Wait for its end; return its status, 128 + N where signal N ended it, as shells do."""
        status = await self._process.wait()
        _remove(self._folder)
        return status if status >= 0 else 128 - status


def _private_folder() -> Path | None:
    """Make a folder that nobody else may enter; None where there is no room for one, or no socket fits its name."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="warmroute-kv-"))
    except OSError:
        return None
    if len(os.fsencode(folder)) <= MAX_FOLDER_BYTES:
        return folder
    _remove(folder)
    return None


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _added(command: Sequence[str], sockets: Callable[[int], Sockets]) -> Addition:
    said = [*command]
    config = text_option(command, "--config")
    try:
        if config is not None:
            with Path(config).open(errors="replace") as file:
                said += config_words(file.read(MAX_CONFIG_BYTES))
        return additions(said, sockets)
    except OSError as error:
        log.warning(f"nothing is added to the engine's command: {error}")
        return Addition()
