"""`warmroute doctor`: what is wrong, and what to type.

Give it a router's admin address, and it looks at the router, every replica's engine and Redis; or an engine's address,
and it looks at what a router and an agent need of it. It sends each engine a prompt of one block twice, with one token
to generate (--no-probe: it does not). With --traffic it tells why hits are low, from a router's last requests or from a
file of request bodies.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
from pathlib import Path
from urllib.parse import urlsplit

from router.errors import ConfigurationError, Problem
from router.tools.doctor_case import Case, Options, collect
from router.tools.doctor_http import Server
from router.tools.doctor_report import Result, exit_code, page, to_json
from router.tools.doctor_text import TokenizerError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `warmroute doctor`."""
    add = parser.add_argument
    add("--router", metavar="URL", help="a router's admin address, as http://127.0.0.1:8080")
    add("--admin-token-file", type=Path, metavar="F", help="file with the router's admin.token (default: none is sent)")
    add("--engine", metavar="URL", help="an engine's address, as http://127.0.0.1:8000, instead of a router's")
    add("--api-key-file", type=Path, metavar="F", help="file with the engines' API key (default: none is sent)")
    add(
        "--tokenizer",
        type=Path,
        metavar="DIR",
        help="folder with tokenizer.json to render with (default: what the router makes of a request)",
    )
    add("--chat-template", type=Path, metavar="FILE", help="the engine's --chat-template (default: the folder's own)")
    add(
        "--block-size", type=_tokens, metavar="N", help="tokens a block that you expect (default: what the engine says)"
    )
    add("--hash-seed", metavar="S", help="the engine's PYTHONHASHSEED, where it is set (default: not set)")
    add("--kv-events", metavar="ADDRESS", help="the engine's event socket (default: what /kv_event_sources says)")
    add("--kv-replay", metavar="ADDRESS", help="its replay socket, likewise (default: what the engine says)")
    add(
        "--redis",
        metavar="URL",
        help="Redis, or set WARMROUTE_DOCTOR_REDIS (default: the router's own, where that shows no password)",
    )
    add(
        "--registration-secret-file",
        type=Path,
        metavar="F",
        help="file with registration.secret, to check leases' signatures (default: they are not checked)",
    )
    add("--no-probe", action="store_true", help="send no prompt to engines (default: one of one block, twice)")
    add("--traffic", action="store_true", help="tell why hits are low instead (needs --router or --bodies)")
    add("--bodies", type=Path, metavar="FILE", help="OpenAI request bodies to look at, JSONL, for --traffic")
    add("--limit", type=_tokens, default=500, metavar="N", help="last requests to look at (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON object instead of a page")


def run(args: argparse.Namespace) -> int:
    """Print the page; 0 when nothing is wrong, 1 when something is.

    Raises:
        ConfigurationError: When an option can't be used.
    """
    options = _options(args)
    if args.traffic or args.bodies:
        from router.tools import doctor_traffic

        results = doctor_traffic.examine(options, args.bodies, args.limit)
        examined = f"traffic of {args.bodies or args.router}"
    else:
        case = _collect(options)
        results, examined = judge(case), str(args.router or args.engine)
    print(to_json(results, examined) if args.json else page(results, examined))
    return exit_code(results)


def judge(case: Case) -> list[Result]:
    """Return the results of all checks."""
    from router.tools.doctor_checks import run_all

    return run_all(case)


def _collect(options: Options) -> Case:
    try:
        return collect(options, random.SystemRandom())
    except TokenizerError as error:
        raise ConfigurationError([Problem("--tokenizer", str(error))]) from error


def _options(args: argparse.Namespace) -> Options:
    problems: list[Problem] = []
    if args.router and args.engine:
        problems.append(Problem("--engine", "is given beside --router", "give one of them"))
    if not (args.router or args.engine or args.bodies):
        problems.append(Problem("", "nothing to look at", "give --router URL, --engine URL or --bodies FILE"))
    if args.traffic and not (args.router or args.bodies):
        problems.append(Problem("--traffic", "needs a router or a file", "give --router URL or --bodies FILE"))
    for name, url in (("--router", args.router), ("--engine", args.engine)):
        if url and not _is_http(url):
            problems.append(Problem(name, f"{url!r} is no http://HOST:PORT"))
    if args.engine and not args.no_probe and importlib.util.find_spec("zmq") is None:
        remedy = 'pip install "warmroute[router,agent]", or give --no-probe'
        problems.append(Problem("--engine", "the package zmq, which hears events, is missing", remedy))
    if args.chat_template and not args.tokenizer:
        problems.append(Problem("--chat-template", "is used together with --tokenizer", "give --tokenizer DIR too"))
    token = _secret("--admin-token-file", args.admin_token_file, problems)
    key = _secret("--api-key-file", args.api_key_file, problems)
    secret = _secret("--registration-secret-file", args.registration_secret_file, problems)
    if problems:
        raise ConfigurationError(problems)
    return Options(
        router=Server(args.router.rstrip("/"), token) if args.router else None,
        engine=args.engine.rstrip("/") if args.engine else None,
        api_key=key,
        tokenizer=args.tokenizer,
        chat_template=args.chat_template,
        block_size=args.block_size,
        seed=args.hash_seed,
        events=args.kv_events,
        replay=args.kv_replay,
        redis=args.redis or os.environ.get("WARMROUTE_DOCTOR_REDIS"),
        secret=secret.encode() if secret else None,
        generate=not args.no_probe,
    )


def _secret(option: str, path: Path | None, problems: list[Problem]) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(option, f"can't read {path}: {error}"))
        return None


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _tokens(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError("must be a whole number, 1 or more")
    return int(value)
