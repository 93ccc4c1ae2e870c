"""A router of several workers, from its start to its end: addresses, signals, reload, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from router.admin.runner import AdminRunner
from router.admin.views import masked_config
from router.config import RouterConfig, is_loopback, split_address
from router.config_file import load
from router.config_reload import digest_of, merged
from router.config_watch import files_of, follow
from router.errors import ConfigurationError, Problem
from router.proxy.listening import Listening, bind, url_of
from router.telemetry.logs import set_level
from router.telemetry.metrics import Metrics
from router.tls import contexts_of
from router.workers.admin import CrewAdmin, CrewView
from router.workers.crew import Crew, make_folder, remove_folder
from router.workers.worker import Worker

LOG = logging.getLogger("warmroute.supervisor")
RELOAD_S = 120.0
"""Workers that take longer to read a configuration (tokenizers are loaded) are not waited for."""


class Supervision:
    """Serves by several workers; offers what a single process does.

    Args:
        config: Checked already, but for what workers alone load.
        config_file: Its file.
    """

    def __init__(self, config: RouterConfig, config_file: Path) -> None:
        self._file = config_file
        self._folder, self._lock = make_folder()
        self._copy = self._folder / "config.yaml"
        self._keep(config_file.read_text(encoding="utf-8"))
        self._crew = Crew(config, self._folder, self._copy)
        self._metrics = Metrics(version("warmroute"))
        self._view = CrewView(self._crew, config, self._metrics)
        self._admin: CrewAdmin | None = None
        self._admin_listening: Listening | None = None
        self._closing = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._hurried = False
        self._wanted = config

    async def start(self) -> dict[str, str]:
        """Start workers and admin.

        Returns:
            The ready line.

        Raises:
            ConfigurationError: An address can't be bound, or the workers can't use the configuration.
        """
        try:
            admin = self._admin = CrewAdmin(self._view)
            self._closing.push_async_callback(admin.close)
            self._crew.on_death = self._died
            self._crew.on_ready = self._repeat_orders
            runner = AdminRunner(admin.application())
            await runner.setup()
            self._closing.push_async_callback(runner.cleanup)
            admin_url = await self._listen(runner)
            url = await self._crew.start()
            self._note_loaded()
            self._tasks.add(asyncio.ensure_future(admin.keep_counts()))
            return {"ready": "router", "http": url, "admin": admin_url or url}
        except BaseException:
            await self.close()
            raise

    async def follow(self, asked: asyncio.Event, read: Mapping[Path, str]) -> None:
        """Reload when a file has changed and when asked to, until cancelled."""
        await follow(lambda: [self._file, *files_of(self._wanted)], self.reload, asked, read)

    async def reload(self) -> None:
        """Have all workers read the file, if it is valid; those that start later read the last valid one."""
        async with self._turn:
            report = self._view.report
            report.tried_unix_s = time.time()
            try:
                text = await asyncio.to_thread(self._file.read_text, encoding="utf-8")
                wanted = await asyncio.to_thread(load, self._file, is_silent=True)
            except (OSError, UnicodeDecodeError):
                self._refuse([str(Problem("", f"can't read {self._file}", "make it readable"))])
            except ConfigurationError as error:
                self._refuse([str(problem) for problem in error.problems])
            else:
                await self._hand_out(text, wanted)
            self._metrics.config_reloaded(report.result)

    def hurry(self) -> bool:
        """End the pause before the drain; False when it is over already."""
        if self._hurried:
            return False
        self._hurried = True
        self._crew.order("hurry")
        return True

    async def drain(self) -> None:
        """Not ready at once; the workers go on, finish what runs, and end."""
        self._view.draining = True
        self._crew.stop_replacing()
        self._crew.order("drain")
        await self._crew.gone()
        await self.close()

    async def close(self) -> None:
        """End everything at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._crew.close()
        if self._admin_listening is not None:
            self._admin_listening.close()
        await self._closing.aclose()
        remove_folder(self._folder, self._lock)

    async def _listen(self, runner: AdminRunner) -> str | None:
        """Serve admin where it is asked for: to workers' clients, and at an address of its own."""
        loop, config = asyncio.get_running_loop(), self._view.config
        host, _ = split_address(config.listen)
        if config.admin.listen is None and (is_loopback(host) or config.admin.token is not None):
            server = await loop.create_unix_server(runner.protocol, str(self._folder / "admin.sock"))
            self._closing.callback(server.close)
        if config.admin.listen is None:
            return None
        tls = contexts_of(config).admin
        try:
            bound = bind(config.admin.listen)
        except OSError as error:
            said = f"can't listen on {config.admin.listen}: {error.strerror or error}"
            raise ConfigurationError([Problem("admin.listen", said, "choose a free one")]) from error
        self._admin_listening = Listening(loop, runner.protocol, tls)
        await self._admin_listening.accept_from(bound)
        return url_of(bound[0], secure=tls is not None)

    async def _hand_out(self, text: str, wanted: RouterConfig) -> None:
        view, report = self._view, self._view.report
        candidate = self._folder / "wanted.yaml"
        _write(candidate, text)
        answers = await self._crew.reload(candidate, RELOAD_S)
        problems = [problem for answer in answers if answer["result"] == "failed" for problem in answer["problems"]]
        if problems:
            self._refuse(list(dict.fromkeys(problems)))
            return
        self._keep(text)
        self._wanted = wanted
        config, needs_restart = merged(view.config, wanted)
        unchanged = config == view.config and needs_restart == report.needs_restart
        report.result, report.problems, report.needs_restart = (
            "unchanged" if unchanged else "applied",
            [],
            needs_restart,
        )
        view.config = config
        set_level(config.log.level)
        if self._admin_listening is not None:
            await self._admin_listening.use(contexts_of(config).admin)
        self._note_loaded()

    def _refuse(self, problems: list[str]) -> None:
        self._view.report.result, self._view.report.problems = "failed", problems
        for problem in problems:
            LOG.error("the configuration is not taken over: %s", problem)

    def _note_loaded(self) -> None:
        report = self._view.report
        report.digest = digest_of(masked_config(self._view.config))
        report.loaded_unix_s = report.tried_unix_s = time.time()
        self._metrics.config_loaded(report.digest, report.loaded_unix_s, len(report.needs_restart))

    def _keep(self, text: str) -> None:
        """Make this what workers read that start from now on."""
        candidate = self._folder / "config.new"
        _write(candidate, text)
        candidate.replace(self._copy)

    def _died(self, worker: Worker) -> None:
        self._metrics.worker_died()
        if self._admin is not None:
            self._admin.died(worker)

    def _repeat_orders(self, worker: Worker) -> None:
        if self._admin is not None:
            task = asyncio.ensure_future(self._admin.repeat_orders(worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _write(file: Path, text: str) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:  # noqa: PTH123
        opened.write(text)
