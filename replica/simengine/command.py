"""`warmroute simengine`: a vLLM replica without a model, for demos, tests and load tests."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import zmq.asyncio
from aiohttp import web

from replica.errors import UsageError
from replica.simengine.core.hashing import BlockHasher
from replica.simengine.core.scheduler import Scheduler
from replica.simengine.engine import Engine
from replica.simengine.faults import Faults, parse
from replica.simengine.options import check, configure, settings_of
from replica.simengine.publisher import EventEncoder, Publisher
from replica.simengine.server import Server
from replica.simengine.settings import Settings
from replica.simengine.text import Text

__all__ = ["configure", "run"]

_KEEP_ALIVE_S = 5.0
_SHUTDOWN_S = 1.0


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UsageError: The tokenizer is missing, options do not go together, or a port is in use.
    """
    # The tokenizer would start a pool of threads for batches; ours are of one text each.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    problems = check(args)
    try:
        text = Text(args.tokenizer)
    except UsageError as error:
        problems += error.problems
    if problems:
        raise UsageError(problems)
    faults = parse(args.fault)
    settings = settings_of(args, text)
    main = _serve(args, settings, text, faults)
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
    return 0


async def _serve(args: argparse.Namespace, settings: Settings, text: Text, faults: Faults) -> None:
    context = zmq.asyncio.Context()
    encoder = EventEncoder(arrays=args.event_encoding == "array", whole_hashes=args.event_hashes == "bytes")
    publishers = [Publisher(context, rank, encoder, faults) for rank in range(settings.ranks)]
    try:
        for rank, publisher in enumerate(publishers):
            _bind(publisher, args, rank)
        hasher = BlockHasher(settings.algorithm, settings.block_size, settings.seed)
        count = _death(faults.die_after_tokens)
        engines = [
            Engine(Scheduler(settings.limits, hasher), settings.timing, settings.time_scale, publisher.publish, count)
            for publisher in publishers
        ]
        server = Server(settings, text, engines, publishers, faults)
        await _serve_http(args, server, engines, publishers)
    finally:
        for publisher in publishers:
            publisher.close()
        context.term()


async def _serve_http(
    args: argparse.Namespace, server: Server, engines: list[Engine], publishers: list[Publisher]
) -> None:
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        auto_decompress=False,
        handler_cancellation=True,
        keepalive_timeout=_KEEP_ALIVE_S,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, args.host, args.port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        remedy = "stop what uses it, or give another --port (0: any free one)"
        raise UsageError(
            [f"--port: {args.host}:{args.port} can't be bound ({error.strerror or error}); {remedy}"]
        ) from error
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    tasks = [asyncio.create_task(each.run()) for each in engines]
    tasks += [asyncio.create_task(each.serve_replay()) for each in publishers]
    gc.freeze()
    _announce(args.host, runner.addresses[0][1], publishers)
    failed = [asyncio.ensure_future(each) for each in (stopped.wait(), _first_failure(tasks))]
    done, _ = await asyncio.wait(failed, return_when=asyncio.FIRST_COMPLETED)
    for task in [*tasks, *failed]:
        task.cancel()
    await runner.cleanup()
    for task in done:
        task.result()


async def _first_failure(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for a task to fail, and fail with it. Ends never otherwise: a rank without replay has nothing to serve."""
    await asyncio.gather(*tasks)
    await asyncio.Event().wait()


def _bind(publisher: Publisher, args: argparse.Namespace, rank: int) -> None:
    def offset(port: int | None) -> int | None:
        return port + rank if port else port

    try:
        publisher.bind(args.host, offset(args.events_port), offset(args.replay_port))
    except OSError as error:
        remedy = "stop what uses it, or give other --events-port and --replay-port (0: any free ones)"
        raise UsageError([f"{error.strerror or error}; {remedy}"]) from error
    except zmq.ZMQError as error:  # no more sockets or files
        remedy = "give fewer, or raise the limit of open files (ulimit -n)"
        raise UsageError([f"--data-parallel-size: rank {rank} gets no sockets ({error}); {remedy}"]) from error


def _announce(host: str, port: int, publishers: list[Publisher]) -> None:
    """Print the one line that says where it listens."""
    shown = (
        "127.0.0.1" if host in ("0.0.0.0", "*") else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    )

    def reachable(endpoint: str | None) -> str | None:
        return endpoint.replace("*", shown) if endpoint else None

    ready = {
        "ready": "simengine",
        "http": f"http://{shown}:{port}",
        "events": [reachable(each.events_endpoint) for each in publishers if each.events_endpoint],
        "replay": [reachable(each.replay_endpoint) for each in publishers if each.replay_endpoint],
    }
    with suppress(OSError):  # nobody reads: no reason not to serve
        print(json.dumps(ready, separators=(",", ":")), flush=True)


def _death(after_tokens: int) -> Callable[[], None]:
    """Return what counts tokens, and ends the process when the fault says so."""
    left = after_tokens

    def count() -> None:
        nonlocal left
        if left:
            left -= 1
            if not left:
                sys.stderr.write("fault die_after_tokens: ending\n")
                os._exit(1)

    return count
