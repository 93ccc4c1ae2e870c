"""The load balancer.

Reads its configuration, checks all of it, and serves until SIGTERM or SIGINT; then running requests finish.
The ready line on standard output tells the addresses that are bound; logs go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
from pathlib import Path

from router.app import App
from router.config_file import load, warnings_of
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
    config = load(args.config, check_models=texts.load)
    setup(config.log.level, config.log.format)
    for warning in warnings_of(config):
        LOG.warning(warning)
    app = App(config, texts)
    if args.check:
        print(f"{args.config}: fine")
        return 0
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_serve(app))


async def _serve(app: App) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ready = json.dumps(await app.start())
    try:
        print(ready, flush=True)
    except OSError as error:
        LOG.warning("nobody reads standard output (%s); ready: %s", error.strerror, ready)
    await stop.wait()
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


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()
