"""`python -m router.tools.load`: runs, writes the report, and says by its exit code whether something got worse."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from loadtest.driver.holding import Sending
from loadtest.driver.scraping import metrics_pages
from loadtest.report import baseline
from loadtest.report.page import Report, now, versions
from loadtest.report.runs import Run
from loadtest.workloads.callers import Callers, read_keys
from loadtest.workloads.text import tokenizer_folder
from loadtest.workloads.traffic import Traffic
from router.errors import ConfigurationError
from router.tools.load.options import check, options, replicas_of, traffics
from router.tools.load.peers import PEERS
from router.tools.load.policies import ENGINE, LocalPlan, run_policies, shrunk
from router.tools.load.sending import own_key
from router.tools.load.target import run_target
from router.tools.processes import StartError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
TRACE_SCALE = 15.0
"""Ten minutes of a trace under seven policies and two peers take under eight."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 when a measure is worse or a request failed, 2 for wrong usage, 130 when interrupted."""
    args = options(__doc__).parse_args(arguments)
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
    check(args)
    sent = traffics(args)
    settings, runs = _system(args, sent)
    settings |= {"warm-up s": args.warm_up, "timeout s": args.timeout, "stream": not args.no_stream}
    settings["traffic"] = [traffic.to_dict() for traffic in sent]
    # A baseline that does not fit is told now rather than after eight minutes.
    stored = baseline.read(args.baseline, settings) if args.baseline else None
    begun_s = time.monotonic()
    done = list(runs)
    report = Report(
        runs=done,
        settings=settings,
        versions=versions() | {name: PEERS[name].version() for name in args.peer},
        made_at=now(),
        baseline=None if stored is None else baseline.compare_all(stored, {run.name: run.stored for run in done}),
        baseline_name=str(args.baseline or ""),
        failed_at_most=args.failed_at_most,
        notes=(f"Took {time.monotonic() - begun_s:.0f} s.",),
    )
    report.write(args.out, with_records=args.records)
    if args.write_baseline:
        baseline.write(args.write_baseline, settings, {run.name: run.stored for run in done})
    print(report.summary(), f"the report is in {args.out / 'report.html'}", sep="\n", flush=True)
    return FAILED if report.failed else 0


def _system(args: argparse.Namespace, sent: list[Traffic]) -> tuple[dict[str, Any], Iterator[Run]]:
    sending = Sending(Callers((args.model, *args.adapters)), not args.no_stream)
    sending = replace(sending, warm_up_s=args.warm_up, timeout_s=args.timeout)
    if args.target:
        salt = {} if args.no_salt else {"cache_salt": secrets.token_hex(8)}
        keys = read_keys(args.api_keys) if args.api_keys else own_key()
        sending = replace(sending, callers=Callers((args.model, *args.adapters), keys), more=salt)
        folder = args.tokenizer or tokenizer_folder()
        settings = {
            "target": args.target,
            "model": args.model,
            "adapters": list(args.adapters),
            "block size": args.block_size,
            "salt": not args.no_salt,
        }
        pages = metrics_pages(args.target, args.metrics)
        return settings, run_target(args.target, folder, args.block_size, sent, sending, pages, _say)
    engine = shrunk(ENGINE, sent[0].shrink) if args.trace else ENGINE
    scale = args.time_scale or (TRACE_SCALE if args.trace else ENGINE.time_scale)
    plan = LocalPlan(
        policies=args.policies,
        peers=args.peer,
        replicas=replicas_of(args),
        engine=replace(engine, time_scale=scale),
        tenants=args.tenants,
        adapters=args.adapters,
        kills=args.kill,
        shrink=sent[0].shrink,
    )
    return dict(plan.to_dict()), run_policies(plan, sent, replace(sending, time_scale=scale), _say)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # As Ctrl-C: what is open is left through its context managers, so every process ends.
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
