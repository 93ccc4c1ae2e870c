"""`warmroute demo`: the same traffic under four policies, each on a fresh fleet; then a router to try.

Progress goes to standard error, results to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.workloads.rendering import ChatText
from loadtest.workloads.text import TextMaker
from router.tools.demo_events import evicted_blocks
from router.tools.demo_lag import event_to_index_lags_s
from router.tools.demo_output import Results, show
from router.tools.demo_plan import RUNS, DemoPlan, PolicyRun
from router.tools.demo_report import (
    Agreement,
    Row,
    agreement,
    histogram_quantile,
    judge_predictions,
    make_bound,
    make_row,
    percentile,
)
from router.tools.demo_traffic import Exchange, send_sessions
from router.tools.local_fleet import LocalFleet
from router.tools.processes import StartError, end_with_parent

INTERRUPTED = 130
LAG_PROBES = 24
FEED_LAG = "warmroute_feed_lag_seconds"
QUESTION = (
    "What does a prefix cache keep, and why is a request faster where the beginning of its prompt was seen before?"
)
"""Over two blocks long, so that asking it twice shows a match."""
DEFAULTS = DemoPlan()


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--once", action="store_true", help="end after the table (default: stay up until Ctrl-C)")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON, last (default: no)")
    whole = _at_least_one
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed, help="seed of the traffic (default: %(default)s)")
    parser.add_argument(
        "--sessions", type=whole, default=DEFAULTS.sessions, help="conversations, in all (default: %(default)s)"
    )
    parser.add_argument("--users", type=whole, default=DEFAULTS.users, help="users at a time (default: %(default)s)")
    parser.add_argument("--replicas", type=whole, default=DEFAULTS.replicas, help="engines (default: %(default)s)")
    parser.add_argument(
        "--num-blocks",
        type=whole,
        default=DEFAULTS.num_blocks,
        help="cache of each engine, in blocks of 16 tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--port", type=_port, default=0, help="the router's port, 0 to 65535; 0: any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--with-parent",
        action="store_true",
        help="end when the process that started it ends, as `make demo` does (Linux; default: no)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; return 0, 1 when a request failed, the ledger differs or a process did not start, 130 when
    interrupted.

    Raises:
        ConfigurationError: The caches are too small for a conversation.
    """
    plan = DemoPlan(args.seed, args.sessions, args.users, args.replicas, args.num_blocks, args.port)
    _listen_to_signals()
    if args.with_parent:
        end_with_parent()
    errors = Console(stderr=True)
    try:
        with ExitStack() as stack:
            demo = _Demo(plan, errors)
            fleet, results = demo.compare(stack)
            console = Console()
            show(results, console)
            if args.json:
                print(results.to_json(), flush=True)
            if not args.once:
                _stay(fleet, plan, console, args.json)
            agreed = all(one.holds for one in results.agreements)
            return 0 if agreed and not any(row.failed for row in results.rows) else 1
    except (StartError, TimeoutError) as error:
        errors.print(f"the demo can't go on: {error}", highlight=False, markup=False)
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted; all processes are stopped")
        return INTERRUPTED


@dataclass(slots=True)
class _Run:
    """One policy's outcome."""

    row: Row
    exchanges: list[Exchange]
    feed_lag_p50_s: float
    agreement: Agreement


class _Demo:
    """The comparison, policy by policy."""

    def __init__(self, plan: DemoPlan, errors: Console) -> None:
        self._plan = plan
        self._errors = errors
        self._text = ChatText.load(plan.engine.folder)
        self._maker = TextMaker(self._text.tokenizer)
        self._sessions = plan.make_sessions(self._maker)
        self._turns = sum(len(session.turns) for session in self._sessions)
        plan.check_room(self._sessions, self._text)

    def compare(self, stack: ExitStack) -> tuple[LocalFleet, Results]:
        """Run all policies; the last one's fleet stays up until `stack` is closed."""
        started_s = time.monotonic()
        done: list[_Run] = []
        with self._progress() as progress:
            for policy in RUNS:
                last = policy is RUNS[-1]
                with ExitStack() as until_next:
                    task = progress.add_task(f"{policy.name}: starting", total=self._turns)
                    fleet = (stack if last else until_next).enter_context(self._plan.fleet(policy))
                    progress.update(task, description=policy.name)
                    done.append(self._measure(policy, fleet, partial(progress.advance, task)))
                    if not self._errors.is_terminal:
                        self._errors.print(f"{policy.name}: {done[-1].row.requests} requests", highlight=False)
        cost = done[-1]
        block_size = self._plan.engine.block_size
        results = Results(
            plan=self._plan,
            rows=[one.row for one in done],
            bounds=[make_bound(one.exchanges, self._text, self._plan.fleet_blocks, block_size) for one in done],
            predictions=judge_predictions([each.record for each in cost.exchanges], block_size),
            agreements=[one.agreement for one in done],
            feed_lag_p50_s=cost.feed_lag_p50_s,
            index_lag_p50_s=percentile(event_to_index_lags_s(fleet, self._maker, LAG_PROBES), 0.5),
            duration_s=time.monotonic() - started_s,
        )
        return fleet, results

    def _measure(self, policy: PolicyRun, fleet: LocalFleet, on_answered: Callable[[], None]) -> _Run:
        lanes = self._plan.lanes(self._sessions)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sent = runner.run(send_sessions(fleet.router.http, self._plan.engine.model, lanes, on_answered))
        evicted = [evicted_blocks(engine.replay) for engine in fleet.engines]
        row = make_row(policy.name, [each.record for each in sent], self._plan.replicas, evicted)
        lag_s = histogram_quantile(_metrics(fleet), FEED_LAG, 0.5) if policy.agents else math.nan
        ledger = json.loads(_text(f"{fleet.router.http}/admin/ledger"))
        agreed = agreement(ledger, [_text(f"{engine.http}/metrics") for engine in fleet.engines])
        return _Run(row, sent, lag_s, agreed)

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description:>28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._errors, disable=not self._errors.is_terminal)


def _listen_to_signals() -> None:
    """End in order on each of them.

    SIGINT too: a shell that is not interactive has its background jobs ignore it, and so would we. But a SIGHUP that is
    ignored is `nohup`'s, and meant.
    """
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    # As Ctrl-C: what is open is left through its context managers, so every process ends.
    raise KeyboardInterrupt


def _metrics(fleet: LocalFleet) -> str:
    return _text(f"{fleet.router.http}/metrics")


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310
        text: str = response.read().decode()
    return text


def _stay(fleet: LocalFleet, plan: DemoPlan, console: Console, quiet: bool) -> None:
    """Tell where everything is, and wait for Ctrl-C.

    Raises:
        StartError: A process of the fleet ended by itself.
    """
    if not quiet:
        body = json.dumps(
            {"model": plan.engine.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}
        )
        lines = [
            "",
            f"router     {fleet.router.http}",
            f"dashboard  {fleet.router.http}/admin/",
            f"decisions  {fleet.router.http}/admin/decisions",
            f"metrics    {fleet.router.http}/metrics",
            *(f"engine r{number}  {engine.http}" for number, engine in enumerate(fleet.engines)),
            f"Valkey     {fleet.redis_url}",
            "",
            "Try it, twice, and see where it goes and why:",
            f"  curl -i {fleet.router.http}/v1/chat/completions -H 'content-type: application/json' "
            f"-H 'x-warmroute-explain: 1' -d '{body}'",
            "",
            "Ctrl-C ends everything.",
        ]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    try:
        while True:
            fleet.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        return


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError("must be a port from 0 to 65535")
    return value


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value
