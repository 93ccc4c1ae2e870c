"""The load balancer.

Reads its configuration, checks all of it, and serves until SIGTERM or SIGINT; then running requests finish. SIGHUP and
a change of the configuration's files make it read them again; the last valid configuration stays.
The ready line on standard output tells the addresses that are bound; logs go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from router.app import App
from router.config import RouterConfig
from router.config_file import load, warnings_of
from router.config_watch import digests, files_of, follow
from router.errors import ConfigurationError
from router.open_files import allow_connections
from router.proxy.data_plane import DataPlane
from router.reloading import Check, Reloader
from router.telemetry.logs import setup
from router.texts import ModelTexts
from router.workers.supervision import Supervision

LOG = logging.getLogger("warmroute.supervisor")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the router's options."""
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="YAML file with the configuration (required)"
    )
    parser.add_argument(
        "--check", action="store_true", help="check the configuration and the tokenizers, then exit (default: serve)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    return serve(args)


def serve(args: argparse.Namespace, plane: type[DataPlane] = DataPlane, check: Check | None = None) -> int:
    """Serve until told to stop.

    Args:
        plane: What carries the traffic.
        check: Finds what of a valid configuration that can't serve by.

    Raises:
        ConfigurationError: The configuration is of no use.
    """
    texts = ModelTexts()
    ahead, read = _look_ahead(args.config)
    if ahead is None or ahead.workers == 1 or args.check:
        config = load(args.config, check_models=texts.load)
    else:
        config = load(args.config)  # each worker loads tokenizers of its own
    if check is not None and (problems := check(config)):
        raise ConfigurationError(problems)
    setup(config.log.level, config.log.format)
    for warning in warnings_of(config):
        LOG.warning(warning)
    too_few_files = allow_connections(config.limits.connections)
    if too_few_files is not None:
        LOG.warning(too_few_files)
    if args.check:
        App(config, texts, plane=plane)
        print(f"{args.config}: fine")
        return 0
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        server: Server
        if config.workers == 1:
            server = Alone(config, texts, args.config, plane, check)
        else:
            server = Supervision(config, args.config)
        return runner.run(_serve(server, read))


class Server(Protocol):
    """A router, of one process or of several."""

    async def start(self) -> dict[str, str]:
        """Serve; return the ready line."""

    async def follow(self, asked: asyncio.Event, read: Mapping[Path, str]) -> None:
        """Reload when a file is another than was read, and when asked to."""

    def hurry(self) -> bool:
        """End the pause before the drain; False when it is over."""

    async def drain(self) -> None:
        """Stop taking traffic, let what runs finish, end."""

    async def close(self) -> None:
        """End at once."""


class Alone:
    """A router of one process."""

    def __init__(
        self, config: RouterConfig, texts: ModelTexts, config_file: Path, plane: type[DataPlane], check: Check | None
    ) -> None:
        self._app = App(config, texts, plane=plane)
        self._reloader = Reloader(config_file, self._app, check=check)

    async def start(self) -> dict[str, str]:
        """See `Server`."""
        return await self._app.start()

    async def follow(self, asked: asyncio.Event, read: Mapping[Path, str]) -> None:
        """See `Server`."""
        await follow(self._reloader.files, self._reloader.reload, asked, read)

    def hurry(self) -> bool:
        """See `Server`."""
        over = self._app.pause_over.is_set()
        self._app.pause_over.set()
        return not over

    async def drain(self) -> None:
        """See `Server`."""
        await self._app.drain()

    async def close(self) -> None:
        """See `Server`."""
        await self._app.close()


def _look_ahead(config_file: Path) -> tuple[RouterConfig | None, Mapping[Path, str]]:
    """Return the configuration, if it is one, and digests of its files from before they are read for good.

    So no later change of them goes unseen.
    """
    config = None
    with contextlib.suppress(ConfigurationError):
        config = load(config_file, is_silent=True)
    return config, digests([config_file, *(files_of(config) if config is not None else [])])


async def _serve(server: Server, read: Mapping[Path, str]) -> int:
    loop = asyncio.get_running_loop()
    stop, reload = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    starting, stopped = asyncio.ensure_future(server.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()  # which ends what was begun
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    ready = json.dumps(await starting)
    try:
        print(ready, flush=True)
    except OSError as error:
        LOG.warning("nobody reads standard output (%s); ready: %s", error.strerror, ready)
    following = asyncio.ensure_future(server.follow(reload, read))
    await stopped
    following.cancel()
    # A second signal ends the pause before the drain, a third one what still runs.
    hurry = asyncio.Event()

    def hurried_on() -> None:
        if not server.hurry():
            hurry.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hurried_on)
    drain, hurried = asyncio.ensure_future(server.drain()), asyncio.ensure_future(hurry.wait())
    await asyncio.wait({drain, hurried}, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not drain.done():
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        await server.close()
    else:
        await drain
    return 0


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()
