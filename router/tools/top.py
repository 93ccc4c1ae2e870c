"""`warmroute top`: a router's fleet in a terminal, from second to second.

Keys: q ends; s sorts by the next column, r turns the order; Up, Down, PgUp, PgDn move; w shows or hides warnings; d
changes between decisions (latest, slowest, surprising, none); space holds still.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console, ConsoleDimensions
from rich.live import Live

from router.errors import ConfigurationError, Problem
from router.tools.doctor_http import Server
from router.tools.top_keys import Keys
from router.tools.top_view import COLUMNS, Shown, View, screen

FINE, WRONG = 0, 1
KEY_WAIT_S = 0.1


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--router", metavar="URL", help="a router's admin address, as http://127.0.0.1:8080 (required)")
    add("--token-file", metavar="FILE", type=Path, help="file with admin.token (default: none is sent)")
    add(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two looks, 0.5 to 60 (default: %(default)s)",
    )
    add(
        "--sort",
        choices=[column.key for column in COLUMNS],
        default="state",
        help="column to begin with (default: %(default)s: what is out of rotation first)",
    )
    add("--once", action="store_true", help="print one look and end, as for a pipe (default: no)")


def run(args: argparse.Namespace) -> int:
    """Show until q or Ctrl-C; 1 where the router does not answer at first.

    Raises:
        ConfigurationError: The options can't be used.
    """
    server = _server(args)
    shown = Shown(sort=args.sort)
    view = View(server)
    if not view.look():
        print(f"warmroute top: {args.router}: the router {view.error}", file=sys.stderr)
        return WRONG
    console = Console()
    if args.once or not console.is_terminal or not sys.stdin.isatty():
        shown.rows = len(view.overview["replicas"])
        console.print(screen(view, shown, console.width, None))
        return FINE
    with Keys(sys.stdin.fileno()) as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        _follow(view, shown, keys, live, args.interval)
    return FINE


def _follow(view: View, shown: Shown, keys: Keys, live: Live, interval_s: float) -> None:
    looked_s = time.monotonic()
    size, draw = (0, 0), True
    while True:
        now_size = os.get_terminal_size(sys.stdout.fileno())
        if draw or now_size != size:
            size = now_size
            live.console.size = ConsoleDimensions(*now_size)
            live.update(screen(view, shown, size.columns, size.lines), refresh=True)
            draw = False
        key = keys.read(KEY_WAIT_S)
        if key in ("q", "Q", "ctrl-c"):
            return
        if key:
            shown.press(key, len(view.overview["replicas"]))
            draw = True
        if not shown.held and time.monotonic() - looked_s >= interval_s:
            looked_s = time.monotonic()
            view.look()
            draw = True


def _server(args: argparse.Namespace) -> Server:
    problems = []
    parts = urlsplit(args.router or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.append(Problem("--router", "missing, or no address", "write http://HOST:PORT"))
    if not 0.5 <= args.interval <= 60:
        problems.append(Problem("--interval", f"{args.interval} is not within 0.5 to 60 seconds"))
    token = None
    if args.token_file is not None:
        try:
            token = args.token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            problems.append(Problem("--token-file", f"can't read {args.token_file}: {reason}"))
    if problems:
        raise ConfigurationError(problems)
    return Server(args.router, token)
