"""Reads the configuration again while the router serves: all of it is checked first, and the last valid one stays."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from router.app import App
from router.config import ModelConfig, RouterConfig
from router.config_file import load, warnings_of
from router.config_reload import merged
from router.config_watch import files_of
from router.errors import ConfigurationError, Problem
from router.telemetry.logs import set_level
from router.texts import ModelTexts
from router.tls import Contexts, contexts_of

LOG = logging.getLogger("warmroute.config")
Check = Callable[[RouterConfig], list[Problem]]


class Reloader:
    """Keeps one router at what its file says.

    Args:
        path: The configuration's file.
        app: Which serves by it.
        adapted: Makes of a configuration what this process serves by: one of several workers gets a share.
        check: Finds what of a valid configuration this process can't serve by.
    """

    def __init__(
        self,
        path: Path,
        app: App,
        adapted: Callable[[RouterConfig], RouterConfig] = lambda config: config,
        check: Check | None = None,
    ) -> None:
        self._check = check
        self._path = path
        self._app = app
        self._adapted = adapted
        self._wanted = app.config
        self._turn = asyncio.Lock()

    def files(self) -> list[Path]:
        """Return the files that a change of is a change of the configuration."""
        return [self._path, *files_of(self._wanted)]

    async def reload(self, path: Path | None = None) -> None:
        """Read the file; apply what is valid, and report what is not.

        Args:
            path: Another file than so far.
        """
        async with self._turn:
            self._path = path or self._path
            app, report = self._app, self._app.report
            staged = app.texts.staged()
            report.tried_unix_s = time.time()
            try:
                wanted, tls = await asyncio.to_thread(self._load, staged)
            except ConfigurationError as error:
                report.result = "failed"
                report.problems = [str(problem) for problem in error.problems]
                for problem in report.problems:
                    LOG.error("the configuration is not taken over: %s", problem)
            else:
                self._apply(wanted, staged, tls)
            app.metrics.config_reloaded(report.result)

    def _load(self, staged: ModelTexts) -> tuple[RouterConfig, Contexts]:
        """In a thread: tokenizers take seconds."""
        known = {model.name: model for model in self._app.config.models}

        def load_changed(models: Sequence[tuple[int, ModelConfig]]) -> list[Problem]:
            return staged.load([(at, model) for at, model in models if not _same_text(known.get(model.name), model)])

        config = load(self._path, check_models=load_changed, is_silent=True)
        if self._check is not None and (problems := self._check(config)):
            raise ConfigurationError(problems)
        return self._adapted(config), contexts_of(config)

    def _apply(self, wanted: RouterConfig, staged: ModelTexts, tls: Contexts) -> None:
        app, report = self._app, self._app.report
        self._wanted = wanted
        config, needs_restart = merged(app.config, wanted)
        report.problems = []
        report.result = "unchanged" if config == app.config and needs_restart == report.needs_restart else "applied"
        if config != app.config:
            set_level(config.log.level)
        # Equal settings are applied too: a file that they name (a certificate, a list of keys) may be another.
        app.apply(config, staged, needs_restart, tls)
        if report.result == "unchanged":
            return
        for warning in warnings_of(config):
            LOG.warning(warning)
        LOG.info("another configuration is in force", extra={"digest": report.digest})
        if needs_restart:
            LOG.warning("changed keys that take effect at the next start only: %s", ", ".join(needs_restart))


def _same_text(known: ModelConfig | None, model: ModelConfig) -> bool:
    """Tell whether a model's text would be the same. What does not go into it may differ."""
    if known is None:
        return False
    keys = ("tokenizer", "revision", "chat_template", "chat_template_kwargs", "allow_client_template")
    return all(getattr(known, key) == getattr(model, key) for key in keys)
