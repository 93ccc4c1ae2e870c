"""What can be asked for, and what is wrong with what was."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from urllib.parse import urlsplit

from loadtest.workloads.presets import PRESETS
from loadtest.workloads.schedule import Stage, read_stages
from loadtest.workloads.traffic import TRACE, Traffic
from router.config_placement import POLICIES
from router.errors import ConfigurationError, Problem
from router.tools.load.peers import PEERS
from router.tools.load.policies import FULL, QUICK

OUT = Path("loadtest-report")
LOCAL_SHRINK = 16
"""Of traces on a local fleet: prompts that a laptop's simulated engines read in time."""


def options(description: str | None) -> argparse.ArgumentParser:
    """Declare the options."""
    parser = argparse.ArgumentParser(prog="python -m router.tools.load", description=description)
    where = parser.add_argument_group("what is tested").add_argument
    where("--target", metavar="URL", help="a running system (default: a local fleet, every policy)")
    where("--model", default="tiny", help="model to ask a target for (default: %(default)s)")
    where("--tokenizer", type=Path, help="folder with the target's tokenizer.json (default: a small one)")
    where(
        "--no-salt",
        action="store_true",
        help="send a target no cache_salt: a second run then finds what the first left in its caches",
    )
    where("--block-size", type=_whole, default=16, help="tokens of a block (default: %(default)s)")
    where(
        "--metrics", type=_names, default=(), metavar="URL,...", help="the target's metrics, of its router and engines"
    )
    where("--api-keys", type=Path, metavar="FILE", help="the target's keys, one a line, that share the traffic")
    where("--adapters", type=_names, default=(), metavar="NAME,...", help="LoRA adapters to ask for beside the model")
    local = parser.add_argument_group("the local fleet").add_argument
    local("--policies", type=_names, default=tuple(POLICIES), help="to run, by commas (default: all)")
    local(
        "--peer",
        action="append",
        default=[],
        metavar="NAME",
        help=f"run another router, too, if it is installed: {' or '.join(PEERS)}; may be repeated",
    )
    local("--tenants", type=int, default=0, help="keys that share the traffic, caches apart (default: none)")
    local(
        "--kill",
        type=_kill,
        action="append",
        default=[],
        metavar="REPLICA@SECOND",
        help="kill an engine, as 1@20; may be repeated",
    )
    local("--replicas", type=_whole, help="engines (default: 4; 8 for a trace)")
    local("--time-scale", type=_positive, help="how much faster their time runs (default: 2; 15 for a trace)")
    traffic = parser.add_argument_group("traffic").add_argument
    traffic(
        "--workload", type=_names, metavar="NAME,...", help=f"of {', '.join(PRESETS)} (default: mixed; --full: all)"
    )
    traffic("--full", action="store_true", help="all workloads that suit a small fleet")
    traffic("--stages", type=_stages, default=(), help="arrivals, as 2x30,2-8x60: 2 a second for 30 s, then a ramp")
    traffic("--trace", type=Path, help="replay a trace in Mooncake's format instead")
    traffic("--trace-seconds", type=_positive, default=600.0, help="of the trace (default: %(default)s)")
    traffic(
        "--shrink",
        type=_whole,
        help=f"make a trace's prompts so many times shorter (default: {LOCAL_SHRINK} locally, else 1)",
    )
    traffic("--seed", type=int, default=1, help="of all texts and times (default: %(default)s)")
    traffic("--rate-scale", type=_positive, default=1.0, help="times the arrivals (default: %(default)s)")
    traffic("--users", type=int, default=0, help="a closed loop of so many (default: arrivals)")
    traffic("--sessions", type=_whole, default=200, help="of a closed loop (default: %(default)s)")
    traffic("--no-stream", action="store_true", help="ask for whole answers: TTFT is then not measured")
    traffic(
        "--timeout",
        type=_positive,
        default=300.0,
        help="seconds after which a request has failed: its user gave up (default: %(default)s)",
    )
    traffic("--warm-up", type=float, default=5.0, help="seconds that are not measured (default: %(default)s)")
    report = parser.add_argument_group("report").add_argument
    report("--out", type=Path, default=OUT, help="folder of report.html and report.json (default: %(default)s)")
    report("--records", action="store_true", help="store every request, too: records.jsonl")
    report("--baseline", type=Path, help="a stored report to compare with; exit code 1 if anything is worse")
    report("--write-baseline", type=Path, help="store this report as a baseline")
    report(
        "--failed-at-most",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of requests that may fail where there is no baseline (default: %(default)s)",
    )
    return parser


def check(args: argparse.Namespace) -> None:
    """Raise all that is wrong with the options at once."""
    problems = [
        Problem(option, f"{name} is not known", f"one of {', '.join(known)}")
        for option, names, known in (
            ("--workload", args.workload or (), PRESETS),
            ("--policies", args.policies, POLICIES),
            ("--peer", args.peer, PEERS),
        )
        for name in names
        if name not in known
    ]
    for option, given in (("--target", [args.target] if args.target else []), ("--metrics", args.metrics)):
        problems += [
            Problem(option, f"{url} is no URL", "as http://127.0.0.1:8080")
            for url in given
            if urlsplit(url).scheme not in ("http", "https")
        ]
    if args.trace and (args.workload or args.users or args.full or args.stages):
        problems.append(Problem("--trace", "has its own arrivals", "leave --workload, --users, --stages, --full out"))
    if args.users and args.stages:
        problems.append(Problem("--stages", "are of arrivals; --users is a closed loop", "one of them"))
    if args.target and (args.peer or args.kill or args.tenants):
        problems.append(Problem("--target", "is nothing to start", "leave --peer, --kill and --tenants out"))
    replicas = replicas_of(args)
    problems += [
        Problem("--kill", f"there is no replica {number}", f"0 to {replicas - 1}")
        for number, _ in args.kill
        if number >= replicas
    ]
    if problems:
        raise ConfigurationError(problems)
    for name in args.peer:
        PEERS[name].path()


def replicas_of(args: argparse.Namespace) -> int:
    """Return how many engines a local fleet has."""
    return int(args.replicas or (8 if args.trace else 4))


def traffics(args: argparse.Namespace) -> list[Traffic]:
    """Return what is sent, in order."""
    if args.trace:
        shrink = args.shrink or (1 if args.target else LOCAL_SHRINK)
        return [Traffic(TRACE, args.seed, args.rate_scale, trace=args.trace, trace_s=args.trace_seconds, shrink=shrink)]
    names = args.workload or (FULL if args.full else QUICK)
    return [
        Traffic(name, args.seed, args.rate_scale, args.users, args.sessions, own_stages=args.stages) for name in names
    ]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _stages(text: str) -> tuple[Stage, ...]:
    try:
        return read_stages(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _kill(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"r?(\d+)@(\d+(?:\.\d+)?)", text)
    if found is None:
        raise argparse.ArgumentTypeError("must be REPLICA@SECOND, as 1@20")
    return int(found[1]), float(found[2])


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be over 0")
    return value
