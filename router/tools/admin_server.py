"""The options of commands that ask a router: where its admin is, and the token."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlsplit

from router.errors import ConfigurationError, Problem
from router.tools.doctor_http import Server


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    parser.add_argument("--router", metavar="URL", help="a router's admin address, as http://127.0.0.1:8080 (required)")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="file with admin.token (default: none is sent)")


def server_of(args: argparse.Namespace, problems: list[Problem]) -> Server:
    """Return where to ask.

    Args:
        problems: Found before, told together with those of these options.

    Raises:
        ConfigurationError: With all of them, if there is any.
    """
    parts = urlsplit(args.router or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems = [Problem("--router", "missing, or no address", "write http://HOST:PORT"), *problems]
    token = None
    if args.token_file is not None:
        try:
            token = args.token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            problems = [*problems, Problem("--token-file", f"can't read {args.token_file}: {reason}")]
    if problems:
        raise ConfigurationError(problems)
    return Server(args.router, token)
