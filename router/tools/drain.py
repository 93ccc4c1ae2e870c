"""Have a replica take no new requests, and finish those it has: `warmroute drain REPLICA --router URL`.

A replica with an agent is drained for every router, also for one that restarts; one of the configuration only for the
router that was asked. Exit code 1 where that failed, or where --wait was over before the replica was idle.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any
from urllib.parse import quote

from router.errors import Problem
from router.kv.drains import MAX_DRAIN_S
from router.tools.admin_server import add_server_options, server_of
from router.tools.doctor_http import Answer, Server

FINE, WRONG = 0, 1
LOOK_EACH_S = 0.25


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("replica", metavar="REPLICA", help="its id, as GET /admin/replicas lists it")
    add_server_options(parser)
    add("--undo", action="store_true", help="let it take requests again")
    add(
        "--for-s",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help=f"how long the order holds unless it is undone, 1 to {MAX_DRAIN_S:g} (default: %(default)s)",
    )
    add(
        "--wait",
        type=float,
        nargs="?",
        const=600.0,
        metavar="SECONDS",
        help="wait so long until nothing runs there, by the router's count and the engine's (default: do not wait; the "
        "bare option: %(const)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Send the order, and wait where that was asked for.

    Raises:
        ConfigurationError: The options can't be used.
    """
    server = _server(args)
    path = f"/admin/replicas/{quote(args.replica, safe='')}/drain"
    answer = server.post(path + "/undo", {}) if args.undo else server.post(path, {"for_s": args.for_s})
    if not answer.ok:
        return _failed(args.replica, answer)
    outcome = answer.object()
    print(_in_words(outcome, undo=args.undo))
    if args.undo or args.wait is None:
        return FINE
    return _wait(server, args.replica, args.wait)


def _server(args: argparse.Namespace) -> Server:
    problems = []
    if not (math.isfinite(args.for_s) and 1 <= args.for_s <= MAX_DRAIN_S):
        problems.append(Problem("--for-s", f"{args.for_s} is not within 1 to {MAX_DRAIN_S:g} seconds"))
    if args.wait is not None and not (math.isfinite(args.wait) and args.wait >= 0):
        problems.append(Problem("--wait", f"{args.wait} is no number of seconds"))
    return server_of(args, problems)


def _in_words(outcome: dict[str, Any], *, undo: bool) -> str:
    what = "takes requests again" if undo else "takes no new requests"
    reach = "at every router" if outcome.get("reaches") == "fleet" else "at this router alone (it has no agent)"
    line = f"{outcome.get('replica')} {what}, {reach}"
    if outcome.get("until_unix_s") and not undo:
        until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outcome["until_unix_s"]))
        line += f", until {until} or --undo"
    if outcome.get("error"):
        line += f"; other routers do not know yet: {outcome['error']}"
    return line


def _wait(server: Server, replica_id: str, wait_s: float) -> int:
    """Wait until the replica is idle in two looks in a row: the engine's own count is up to a second old."""
    began_s, quiet = time.monotonic(), 0
    while quiet < 2:
        answer = server.get("/admin/replicas")
        if not answer.ok:
            return _failed(replica_id, answer)
        left = requests_at(answer.object(), replica_id)
        quiet = quiet + 1 if left == 0 else 0
        if time.monotonic() - began_s > wait_s:
            print(f"after {wait_s:g} s it has {'unknown' if left is None else left} requests", file=sys.stderr)
            return WRONG
        time.sleep(LOOK_EACH_S if quiet == 0 else 4 * LOOK_EACH_S)
    print(f"{replica_id} is idle")
    return FINE


def requests_at(listed: dict[str, Any], replica_id: str) -> int | None:
    """Return how many requests a replica has by what `/admin/replicas` says: the router's own or the engine's count.

    None is unknown: the engine's count is missing. A replica that is no longer there has none.
    """
    replica = next((item for item in listed.get("replicas", []) if item.get("replica") == replica_id), None)
    if replica is None:
        return 0
    total = 0
    for unit in replica.get("units", []):
        own, load = unit.get("requests", 0), unit.get("load")
        if own == 0 and load is None:
            return None
        total += max(own, load["running"] + load["waiting"] if load is not None else 0)
    return total


def _failed(replica_id: str, answer: Answer) -> int:
    print(f"warmroute drain: {replica_id}: the router {answer.why()}", file=sys.stderr)
    return WRONG
