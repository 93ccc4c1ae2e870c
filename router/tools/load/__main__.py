"""`python -m router.tools.load`: runs, writes the report, and says by its exit code whether something got worse."""

from __future__ import annotations

import argparse
import platform
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from loadtest.driver.driver import Sending
from loadtest.report import baseline
from loadtest.report.baseline import Verdict
from loadtest.report.measures import SPECS
from loadtest.report.page import HEADLINES, Report
from loadtest.report.plots import shown
from loadtest.report.runs import Run
from loadtest.workloads.presets import PRESETS
from loadtest.workloads.text import tokenizer_folder
from router.config_placement import POLICIES
from router.errors import ConfigurationError, Problem
from router.tools.load.plan import TRACE, Traffic
from router.tools.processes import StartError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
OUT = Path("loadtest-report")


def options() -> argparse.ArgumentParser:
    """Declare the options."""
    parser = argparse.ArgumentParser(prog="python -m router.tools.load", description=__doc__)
    where = parser.add_argument_group("what is tested")
    where.add_argument("--target", metavar="URL", help="a running system (default: a local fleet, every policy)")
    where.add_argument("--model", default="tiny", help="model to ask a target for (default: %(default)s)")
    where.add_argument("--tokenizer", type=Path, help="folder with the target's tokenizer.json (default: a small one)")
    where.add_argument(
        "--no-salt",
        action="store_true",
        help="send a target no cache_salt: a second run then finds what the first left in its caches",
    )
    where.add_argument("--block-size", type=_whole, default=16, help="tokens of a block (default: %(default)s)")
    where.add_argument(
        "--policies", type=_names, default=tuple(POLICIES), help="of the local fleet, by commas (default: all)"
    )
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--workload", type=_names, metavar="NAME,...", help=f"of {', '.join(PRESETS)} (default: mixed; --full: all)"
    )
    traffic.add_argument("--full", action="store_true", help="all workloads that suit a small fleet")
    traffic.add_argument("--trace", type=Path, help="replay a trace in Mooncake's format instead")
    traffic.add_argument("--trace-seconds", type=_positive, default=600.0, help="of the trace (default: %(default)s)")
    traffic.add_argument(
        "--shrink", type=_whole, help="make a trace's prompts that many times shorter (default: 8 locally, else 1)"
    )
    traffic.add_argument("--seed", type=int, default=1, help="of all texts and times (default: %(default)s)")
    traffic.add_argument("--rate-scale", type=_positive, default=1.0, help="times the arrivals (default: %(default)s)")
    traffic.add_argument("--users", type=int, default=0, help="a closed loop of so many (default: arrivals)")
    traffic.add_argument("--sessions", type=_whole, default=200, help="of a closed loop (default: %(default)s)")
    traffic.add_argument("--no-stream", action="store_true", help="ask for whole answers: TTFT is then not measured")
    traffic.add_argument(
        "--warm-up", type=float, default=5.0, help="seconds that are not measured (default: %(default)s)"
    )
    report = parser.add_argument_group("report")
    report.add_argument(
        "--out", type=Path, default=OUT, help="folder of report.html and report.json (default: %(default)s)"
    )
    report.add_argument(
        "--baseline", type=Path, help="a stored report to compare with; exit code 1 if anything is worse"
    )
    report.add_argument("--write-baseline", type=Path, help="store this report as a baseline")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 when a measure is worse or a request failed, 2 for wrong usage, 130 when interrupted."""
    args = options().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(args)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return MISUSED
    except StartError as error:
        print(f"the load test can't go on: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; all processes are stopped", file=sys.stderr)
        return INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    _check(args)
    traffics = _traffics(args)
    settings, runs = _system(args, traffics)
    settings |= {"warm-up s": args.warm_up, "stream": not args.no_stream}
    settings["traffic"] = [traffic.to_dict() for traffic in traffics]
    # A baseline that does not fit is told now rather than after eight minutes.
    stored = baseline.read(args.baseline, settings) if args.baseline else None
    begun_s = time.monotonic()
    done = list(runs)
    comparisons = None
    if stored is not None:
        known = [run for run in done if run.name in stored]
        comparisons = [each for run in known for each in baseline.compare(run.name, stored[run.name], run.stored)]
    report = Report(
        runs=done,
        settings=settings,
        versions={name: version(name) for name in ("warmroute", "aiohttp", "tokenizers", "uvloop")}
        | {"python": platform.python_version(), "system": platform.platform()},
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        baseline=comparisons,
        baseline_name=str(args.baseline or ""),
        notes=(f"Took {time.monotonic() - begun_s:.0f} s.",),
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "report.html").write_text(report.to_html(), encoding="utf-8")
    (args.out / "report.json").write_text(report.to_json(), encoding="utf-8")
    if args.write_baseline:
        baseline.write(args.write_baseline, settings, {run.name: run.stored for run in done})
    _show(report, args.out)
    return FAILED if report.failed else 0


def _check(args: argparse.Namespace) -> None:
    """Raise all that is wrong with the options at once."""
    problems = [
        Problem(option, f"{name} is not known", f"one of {', '.join(known)}")
        for option, names, known in (
            ("--workload", args.workload or (), PRESETS),
            ("--policies", args.policies, POLICIES),
        )
        for name in names
        if name not in known
    ]
    if args.target and urlsplit(args.target).scheme not in ("http", "https"):
        problems.append(Problem("--target", f"{args.target} is no URL", "as http://127.0.0.1:8080"))
    if args.trace and (args.workload or args.users or args.full):
        problems.append(Problem("--trace", "has its own arrivals", "leave --workload, --users and --full out"))
    if problems:
        raise ConfigurationError(problems)


def _traffics(args: argparse.Namespace) -> list[Traffic]:
    from router.tools.load.policies import FULL, QUICK

    if args.trace:
        shrink = args.shrink or (1 if args.target else 8)
        return [Traffic(TRACE, args.seed, args.rate_scale, trace=args.trace, trace_s=args.trace_seconds, shrink=shrink)]
    names = args.workload or (FULL if args.full else QUICK)
    return [Traffic(name, args.seed, args.rate_scale, args.users, args.sessions) for name in names]


def _system(args: argparse.Namespace, traffics: list[Traffic]) -> tuple[dict[str, Any], Iterator[Run]]:
    if args.target:
        from router.tools.load.target import run_target

        salt = {} if args.no_salt else {"cache_salt": secrets.token_hex(8)}
        sending = Sending(args.model, not args.no_stream, warm_up_s=args.warm_up, more=salt)
        folder = args.tokenizer or tokenizer_folder()
        settings = {"target": args.target, "model": args.model, "block size": args.block_size, "salt": not args.no_salt}
        return settings, run_target(args.target, folder, args.block_size, traffics, sending, _say)
    from router.tools.load.policies import LocalPlan, run_policies

    plan = LocalPlan(policies=args.policies)
    sending = Sending(plan.engine.model, not args.no_stream, time_scale=plan.engine.time_scale, warm_up_s=args.warm_up)
    return dict(plan.to_dict()), run_policies(plan, traffics, sending, _say)


def _show(report: Report, folder: Path) -> None:
    for run in report.runs:
        told = ", ".join(f"{name} {shown(run.measures[name].value, SPECS[name].unit)}" for name in HEADLINES)
        print(f"{run.name}: {told}")
    for each in report.baseline or ():
        if each.verdict in (Verdict.WORSE, Verdict.BETTER):
            unit = SPECS[each.measure].unit
            print(f"{each.verdict}: {each.run} {each.measure} {shown(each.before, unit)} -> {shown(each.after, unit)}")
    print(f"{'FAILED' if report.failed else 'passed'}; the report is in {folder / 'report.html'}", flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # As Ctrl-C: what is open is left through its context managers, so every process ends.
    raise KeyboardInterrupt


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


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


if __name__ == "__main__":
    sys.exit(main())
