"""`warmroute agent`: publishes which blocks the engine beside it holds."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
from pathlib import Path

from replica.agent import logs
from replica.agent.adapters import adapters
from replica.agent.settings import API_KEY_VARIABLE, REDIS_VARIABLE, SECRET_VARIABLE, from_args
from router.kv.redis_url import parse_redis_url

log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--engine-url", metavar="URL", help="the engine's HTTP address, as http://127.0.0.1:8000 (required)")
    add(
        "--engine",
        choices=["auto", *adapters()],
        default="auto",
        help="which engine it is; auto sees it by its models and metrics (default: %(default)s)",
    )
    add(
        "--redis",
        metavar="URL",
        help="Redis or Valkey, as redis://HOST:PORT/DB; TLS, Sentinel, Cluster and more: docs/redis.md; required, here "
        f"or (with a password) in {REDIS_VARIABLE}",
    )
    add(
        "--kv-events",
        metavar="ADDRESS",
        help="the engine's event socket, as tcp://HOST:PORT; rank r is at port + r (default: what the engine says)",
    )
    add("--kv-replay", metavar="ADDRESS", help="its replay socket, likewise (default: what the engine says)")
    add(
        "--advertise", metavar="URL", help="where routers reach the engine, as http://HOST:PORT (default: --engine-url)"
    )
    add(
        "--replica-id",
        metavar="ID",
        help="name of this replica, unique in the fleet, and seen by clients (default: the host's name, as HOSTNAME "
        "tells it, and a short hash of --advertise)",
    )
    add(
        "--hash-seed",
        metavar="SEED",
        help="the engine's PYTHONHASHSEED, where it is set (default: not set)",
    )
    add(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="where /healthz and /metrics are served; port 0 takes a free one (default: %(default)s)",
    )
    add("--namespace", default="wr", help="prefix of all keys in Redis; the routers' too (default: %(default)s)")
    add("--lanes", type=int, default=16, help="streams in Redis; the routers' too (default: %(default)s)")
    add(
        "--registration-secret-file",
        metavar="FILE",
        help=f"file with the secret that signs leases, or set {SECRET_VARIABLE} (default: unsigned)",
    )
    add(
        "--tokenizer",
        metavar="DIR",
        type=Path,
        help="folder with the engine's tokenizer, published for routers that have none of the model (default: the "
        "model's root, as the engine tells it, where that is such a folder here; never a hub's name)",
    )
    add(
        "--chat-template",
        metavar="FILE",
        type=Path,
        help="the engine's own --chat-template, published with the tokenizer (default: the model's own)",
    )
    add(
        "--default-chat-template-kwargs",
        metavar="JSON",
        help="the engine's own, published with the tokenizer (default: none). This and the two options above are taken "
        "from the ENGINE COMMAND where it has them",
    )
    add("--no-publish-tokenizer", action="store_true", help="publish none of it (default: it is published)")
    add("--lease-s", type=float, default=10.0, help="seconds that a lease holds without renewal (default: %(default)s)")
    add(
        "--snapshot-s",
        type=float,
        default=30.0,
        help="seconds between snapshots of a changing unit (default: %(default)s)",
    )
    add(
        "--drain-s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="longest wait for requests in flight when it ends (SIGTERM): routers are told at once, then the engine is "
        "let finish, then the lease goes, then an engine that was started here is told to stop; a second signal ends "
        "the wait (default: %(default)s)",
    )
    add(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="folder of the agent's own state (hashes, no tokens), from which it goes on when it restarts beside a "
        "running engine; only its user may write there (default: warmroute-agent-UID in the temporary folder)",
    )
    add("--no-state", action="store_true", help="keep no state: a restart begins from what the engine can replay")
    add(
        "--wait-ready",
        type=float,
        nargs="?",
        const=0.0,
        metavar="SECONDS",
        help="seconds to wait for the engine's first answer, then give up (exit 1); nothing is registered before it "
        "answers (default: for ever, as 0 and the bare option)",
    )
    add(
        "--engine-as-it-is",
        action="store_true",
        help="start the ENGINE COMMAND as it is written (default: with the hash algorithm, the event and replay "
        "sockets and the cached-token figures that it does not set itself)",
    )
    add("--log-format", choices=["json", "console"], default="json", help="form of log lines (default: %(default)s)")
    add(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="least severe lines that are written (default: %(default)s)",
    )
    add(
        "engine_command",
        nargs="*",
        metavar="ENGINE COMMAND",
        help="after --: start the engine with this command, and with what it lacks, pass signals on to "
        "it, and exit with its status (default: the engine runs by itself)",
    )
    parser.epilog = f"An engine that runs with --api-key: set {API_KEY_VARIABLE}."


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Raises UsageError for what can't be used."""
    settings = from_args(args)
    logs.setup(settings.log_format, settings.log_level)
    if args.redis and parse_redis_url(args.redis).holds_secret:
        log.warning(
            f"the password in --redis is seen by every user of this machine: set {REDIS_VARIABLE} instead, or write "
            "?password_file=FILE"
        )
    from replica.agent.app import Agent

    try:
        loop_factory = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        loop_factory = None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(Agent(settings).run())
