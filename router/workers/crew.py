"""The workers of one router: started, replaced when they die, told what to do.

Each worker has sockets of its own, bound to the clients' address with SO_REUSEPORT: the kernel spreads connections over
them by a hash of their addresses, evenly whoever is quicker to accept. (One socket for all is no even spread: an idle
worker that is woken first takes what it can get.) The crew holds every socket open, so connections that wait for a
worker that has died are not reset: another one accepts them until it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from router import shared_load
from router.config import RouterConfig
from router.errors import ConfigurationError, Problem
from router.proxy.listening import bind, url_of
from router.workers.worker import Worker, WorkerState

LOG = logging.getLogger("warmroute.workers")
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
STEADY_S = 30.0
"""A worker that lived so long died of something new: it is replaced without a pause again."""
START_TRIES = 3
"""Workers that die before any was ready: after so many of one seat, the router gives up."""
STOP_S = 5.0
FOLDER_PREFIX = "warmroute-workers-"
LOCK = "lock"
MAX_FOLDER_BYTES = 90
"""A Unix socket's whole path has 107."""
EXIT_CONFIGURATION = 2


class Crew:
    """See the module.

    Args:
        config: Of the start.
        config_file: A copy that only this user can read, of what is in force: workers that start read it.
        folder: For sockets and that copy.
    """

    def __init__(self, config: RouterConfig, folder: Path, config_file: Path) -> None:
        self._config = config
        self.folder = folder
        self._config_file = config_file
        self.workers = [Worker(number, self._heard) for number in range(config.workers)]
        self.deaths = 0
        self._stop = asyncio.Event()
        self.on_death: Callable[[Worker], None] | None = None
        self.on_ready: Callable[[Worker], None] | None = None
        self._sockets: list[list[socket.socket]] = []
        self._load = -1
        self._keeping: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._reports: dict[int, dict[str, Any]] = {}
        self._failure: ConfigurationError | None = None
        self._failed_starts = 0

    @property
    def stopping(self) -> bool:
        """Whether no worker is replaced any more."""
        return self._stop.is_set()

    def stop_replacing(self) -> None:
        """Replace no worker any more."""
        self._stop.set()
        self._changed.set()

    @property
    def serving(self) -> list[Worker]:
        """Those that take requests, in order of their numbers."""
        return [worker for worker in self.workers if worker.state is WorkerState.SERVING]

    def states(self) -> dict[str, int]:
        """Return how many workers are in each state."""
        return {state.value: sum(worker.state is state for worker in self.workers) for state in WorkerState}

    async def start(self) -> str:
        """Start all; return the clients' address once every worker serves.

        Raises:
            ConfigurationError: The address can't be bound, or workers can't use the configuration.
        """
        self._sockets = self._bind()
        self._load = shared_load.create(len(self.workers))
        self._keeping = [asyncio.ensure_future(self._keep(worker)) for worker in self.workers]
        while len(self.serving) < len(self.workers) and not self.stopping:
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()
        return url_of(self._sockets[0][0], secure=self._config.tls is not None)

    def order(self, word: str, **more: Any) -> None:
        """Tell all workers to do something."""
        for worker in self.workers:
            worker.order(word, **more)

    async def reload(self, file: Path, timeout_s: float) -> list[dict[str, Any]]:
        """Have all workers that serve read a file; return their reports."""
        asked = self.serving
        self._reports.clear()
        for worker in asked:
            worker.order("reload", file=str(file))
        deadline_s = time.monotonic() + timeout_s
        while any(worker.number not in self._reports for worker in asked if worker.state is WorkerState.SERVING):
            self._changed.clear()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                break
        return list(self._reports.values())

    async def gone(self) -> None:
        """Wait until every worker has ended; see `stop_replacing`."""
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def close(self) -> None:
        """End everything."""
        self.stop_replacing()
        self.order("stop")
        for worker in self.workers:
            if worker.state is WorkerState.STARTING:
                worker.kill()  # it serves nobody, and hears no order yet
        _, left = await asyncio.wait(self._keeping, timeout=STOP_S) if self._keeping else (set(), set())
        if left:
            for worker in self.workers:
                worker.kill()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for seat in self._sockets:
            for each in seat:
                each.close()
        if self._load >= 0:
            os.close(self._load)
            self._load = -1

    # -- one worker's life --------------------------------------------------------------------------------------------

    async def _keep(self, worker: Worker) -> None:
        pause_s = 0.0
        while not self._stop.is_set():
            begun_s = time.monotonic()
            code = await worker.live(self._spec(), self._sockets, self._load)
            shared_load.clear(self._load, worker.number, len(self.workers))
            if self._stop.is_set():
                break
            self._cover()
            self.deaths += 1
            if self.on_death is not None:
                self.on_death(worker)
            lived_s = time.monotonic() - begun_s
            pause_s = 0.0 if lived_s >= STEADY_S else min(max(FIRST_PAUSE_S, 2 * pause_s), LONGEST_PAUSE_S)
            self._judge_start(worker, code)
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            LOG.error(
                "worker %d ended after %.1f s (%s); the next one starts in %.1f s", worker.number, lived_s, why, pause_s
            )
            self._changed.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)
        self._changed.set()

    def _judge_start(self, worker: Worker, code: int) -> None:
        if any(each.ready for each in self.workers):
            return
        self._failed_starts += 1
        if code == EXIT_CONFIGURATION and worker.problems:
            self._failure = ConfigurationError(worker.problems)
        elif self._failed_starts >= START_TRIES * len(self.workers):
            problem = Problem("workers", "none of them starts; what they wrote before tells why")
            self._failure = ConfigurationError([problem])

    def _heard(self, worker: Worker, word: str, said: dict[str, Any]) -> None:
        if word == "ready":
            for other in self.workers:
                if other is not worker:
                    other.order("uncover", seat=worker.number)
            self._cover()
            if self.on_ready is not None:
                self.on_ready(worker)
        elif word == "leaving":
            self._cover()
        elif word == "reloaded":
            self._reports[worker.number] = said
        self._changed.set()

    def _cover(self) -> None:
        """Have workers that serve accept from the sockets of those that do not. To be told so twice is no harm."""
        serving = self.serving
        if self.stopping or not serving:
            return
        for worker in self.workers:
            if worker.state is not WorkerState.SERVING:
                serving[worker.number % len(serving)].order("cover", seat=worker.number)

    def _spec(self) -> dict[str, Any]:
        return {"config": str(self._config_file), "folder": str(self.folder)}

    def _bind(self) -> list[list[socket.socket]]:
        address = self._config.listen
        try:
            # Without SO_REUSEPORT first: with it, another router of this user on the same port would go unnoticed.
            first = bind(address)
            host = address.rpartition(":")[0]
            address = f"{host}:{first[0].getsockname()[1]}"
            for each in first:
                each.close()
            return [bind(address, shared=True) for _ in self.workers]
        except OSError as error:
            problem = Problem("listen", f"can't listen on {address}: {error.strerror or error}", "choose a free one")
            raise ConfigurationError([problem]) from error


def make_folder() -> tuple[Path, int]:
    """Return a new folder that only this user can enter, and a descriptor that locks it while this process lives.

    Folders of supervisors that were killed are removed.

    Raises:
        ConfigurationError: There is no place for one.
    """
    try:
        for left in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
            _remove_if_left(left)
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
            folder.rmdir()
            problem = Problem(
                "workers", f"{tempfile.gettempdir()} is too long for Unix sockets", "set a shorter TMPDIR"
            )
            raise ConfigurationError([problem])
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return folder, lock
    except OSError as error:
        problem = Problem("workers", f"can't make a folder in {tempfile.gettempdir()}: {error.strerror}", "set TMPDIR")
        raise ConfigurationError([problem]) from error


def remove_folder(folder: Path, lock: int) -> None:
    """Remove it with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder whose supervisor is gone: a lock tells, also where processes can't see each other."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # another user's, or just being made
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        if folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
