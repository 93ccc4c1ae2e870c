"""A worker's process: `python -m router.workers.process SPEC`, started by the crew and by nobody else.

It lives no longer than its supervisor: the kernel ends it with its parent, and so does the end of the control stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from router.app import App
from router.config_file import load
from router.errors import ConfigurationError
from router.reloading import Reloader
from router.seat import Seat, share_of
from router.shared_load import SharedLoad
from router.telemetry.logs import setup
from router.texts import ModelTexts
from router.workers.control import Control
from router.workers.relay import relay_to

EXIT_CONFIGURATION = 2
EXIT_ORPHANED = 3
_PR_SET_PDEATHSIG = 1


def main(spec: dict[str, Any]) -> int:
    """Serve until told to stop, or until the supervisor is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != spec["parent"]:
        return EXIT_ORPHANED
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's go to the whole group; the supervisor tells what to do
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Worker(spec).run())


class _Worker:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._number: int = spec["number"]
        self._sockets = [[socket.socket(fileno=fd) for fd in seat] for seat in spec["sockets"]]
        self._tasks: set[asyncio.Task[Any]] = set()
        self._drained = asyncio.Event()
        self._is_leaving = False

    async def run(self) -> int:
        control = await Control.over(socket.socket(fileno=self._spec["control"]))
        texts = ModelTexts()
        try:
            config = load(Path(self._spec["config"]), check_models=texts.load, is_silent=True)
            setup(config.log.level, config.log.format)
            app = App(self._share(config), texts, self._seat())
            ready = await app.start()
        except ConfigurationError as error:
            control.say("failed", problems=[[item.path, item.message, item.remedy] for item in error.problems])
            control.close()
            await asyncio.sleep(0)
            return EXIT_CONFIGURATION
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._drain, app, control)
        control.say("ready", **ready)
        obeying = asyncio.ensure_future(self._obey(control, app))
        drained = asyncio.ensure_future(self._drained.wait())
        await asyncio.wait({obeying, drained}, return_when=asyncio.FIRST_COMPLETED)
        for task in (obeying, drained, *self._tasks):
            task.cancel()
        await asyncio.gather(obeying, drained, *self._tasks, return_exceptions=True)
        if not self._drained.is_set():
            await app.close()
        control.close()
        return 0

    async def _obey(self, control: Control, app: App) -> None:
        reloader = Reloader(Path(self._spec["config"]), app, self._share)
        while (order := await control.hear()) is not None:
            word = order["word"]
            if word == "reload":
                await reloader.reload(Path(order["file"]))
                control.say("reloaded", **app.report.to_dict())
            elif word == "drain":
                self._drain(app, control)
            elif word == "hurry":
                app.pause_over.set()
            elif word == "stop":
                return
            elif word in ("cover", "uncover") and not self._is_leaving:
                await app.cover(self._sockets[order["seat"]], covers=word == "cover")

    def _drain(self, app: App, control: Control) -> None:
        if self._is_leaving:
            return
        self._is_leaving = True
        control.say("leaving")

        async def drain() -> None:
            await app.drain()
            self._drained.set()

        task = asyncio.ensure_future(drain())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _share(self, config: Any) -> Any:
        return share_of(config, len(self._sockets))

    def _seat(self) -> Seat:
        folder = Path(self._spec["folder"])
        return Seat(
            number=self._number,
            sockets=self._sockets[self._number],
            admin_path=folder / f"worker-{self._number}.sock",
            admin_handoff=relay_to(folder / "admin.sock"),
            load=SharedLoad(self._spec["load"], self._number, len(self._sockets)),
        )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(json.loads(sys.argv[1])))
