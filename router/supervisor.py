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

from router.app import App
from router.config_file import load, warnings_of
from router.config_watch import digests, files_of, watch
from router.errors import ConfigurationError
from router.reloading import Reloader
from router.telemetry.logs import setup
from router.texts import ModelTexts

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
    texts = ModelTexts()
    read = _digests_before(args.config)
    config = load(args.config, check_models=texts.load)
    setup(config.log.level, config.log.format)
    for warning in warnings_of(config):
        LOG.warning(warning)
    app = App(config, texts)
    if args.check:
        print(f"{args.config}: fine")
        return 0
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_serve(app, args.config, read))


def _digests_before(config_file: Path) -> Mapping[Path, str]:
    """Return the digests of the configuration's files before they are read for good: no later change goes unseen."""
    files = [config_file]
    with contextlib.suppress(ConfigurationError):
        files += files_of(load(config_file, is_silent=True))
    return digests(files)


async def _serve(app: App, config_file: Path, read: Mapping[Path, str]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reload = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    ready = json.dumps(await app.start())
    try:
        print(ready, flush=True)
    except OSError as error:
        LOG.warning("nobody reads standard output (%s); ready: %s", error.strerror, ready)
    reloader = Reloader(config_file, app)
    following = asyncio.ensure_future(_follow(reloader, reload, read))
    await stop.wait()
    following.cancel()
    loop.add_signal_handler(signal.SIGHUP, _nothing)
    # A second signal ends the pause before the drain, a third one what still runs.
    hurry = asyncio.Event()

    def hurried_on() -> None:
        (hurry if app.pause_over.is_set() else app.pause_over).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hurried_on)
    drain = asyncio.ensure_future(app.drain())
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait({drain, hurried}, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not drain.done():
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        await app.close()
    else:
        await drain
    return 0


async def _follow(reloader: Reloader, asked: asyncio.Event, read: Mapping[Path, str]) -> None:
    """Reload when a file has changed, and when asked to."""

    async def when_asked() -> None:
        while True:
            await asked.wait()
            asked.clear()
            await reloader.reload()

    async with asyncio.TaskGroup() as group:
        group.create_task(watch(reloader.files, reloader.reload, read))
        group.create_task(when_asked())


def _nothing() -> None:
    """A router that is going away reads no configuration."""


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()
