"""`warmroute simulate`: what each policy gives on a trace, in virtual time, with the router's own placement code.

Replicas are simulated too: `serial` computes one prompt after the other (the model of published simulations), `batched`
is the simulated engine's own core (continuous batching, paged blocks). Policies are the router's own, and other
routers' rules with their published defaults.

The router's policies but `cost`, and all rules of others, know what no router can: what each engine has yet to compute,
to the token. `cost` hears what a router hears. `--knowledge` changes that.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from router.config_placement import POLICIES
from router.tools.simulation.figures import Row, shared_cache_hit_rate
from router.tools.simulation.output import Progress, show, write_html, write_text
from router.tools.simulation.peers import PEERS
from router.tools.simulation.plan import Plan, check
from router.tools.simulation.policies import simulate
from router.tools.simulation.requests import Session, requests_of
from router.tools.simulation.run import ENGINES
from router.tools.simulation.trace import asked_blocks, read_trace, spread
from router.tools.simulation.tuning import as_yaml, parts_of, tune
from router.tools.simulation.tuning_output import show_tuning, tuning_dict
from router.tools.simulation.workloads import SCENARIOS, Scenario, sessions_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `warmroute simulate`."""
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="FILE", help="requests in Mooncake's format, one JSON a line")
    source.add_argument(
        "--workload", choices=list(SCENARIOS), metavar="NAME", help=f"generated traffic: {', '.join(SCENARIOS)}"
    )
    add("--replicas", type=int, metavar="N", help="engines, 1 to 1000 (a workload has its own)")
    add("--blocks", type=int, metavar="N", help="blocks of each engine's cache, 1 or more (a workload has its own)")
    add(
        "--block-tokens",
        type=int,
        metavar="N",
        help="tokens a block (default: what the trace says, else 512; workloads: 64)",
    )
    add("--engine", choices=list(ENGINES), default="serial", help="model of an engine (default: serial)")
    add(
        "--prefill-tokens-per-s",
        metavar="X[,X...]",
        help="prompt tokens an engine computes in a second (default: 8000, or the workload's); several: replicas take "
        "them in turn",
    )
    add("--decode-step-s", type=float, default=0.025, metavar="Y", help="seconds a token of an answer (default: 0.025)")
    add(
        "--decode-request-s",
        type=float,
        default=0.0,
        metavar="Y",
        help="seconds that each request beside the first adds to a step of a batched engine (default: 0)",
    )
    add(
        "--policy",
        default="",
        metavar="NAME[,NAME...]",
        help=f"the router's own: {', '.join(POLICIES)}; others': {', '.join(PEERS)}",
    )
    add("--speed", type=float, default=1.0, metavar="F", help="requests come F times as fast (default: 1)")
    add(
        "--spread-s",
        type=float,
        default=0.0,
        metavar="S",
        help="move each request of a trace later by up to S seconds, at random: recorded times may be rounded "
        "(Mooncake's to 3 s; default: 0)",
    )
    add(
        "--knowledge",
        choices=["default", "router", "exact"],
        default="default",
        help="what the router's own policies know: `router` what a router hears, `exact` the engines' remaining work; "
        "default: `router` for cost, `exact` for the others",
    )
    add("--approximate", action="store_true", help="engines announce no blocks: routers remember what they sent where")
    add("--routers", type=int, default=1, metavar="N", help="routers that share the traffic, 1 to 64 (default: 1)")
    add("--warm-joins", action="store_true", help="replicas that join get the hottest beginnings first (`cost` alone)")
    add("--no-shared-load", action="store_true", help="routers do not tell each other what they have in flight")
    add("--event-delay-s", type=float, default=0.02, metavar="S", help="from block to index, seconds (default: 0.02)")
    add("--event-loss-share", type=float, default=0.0, metavar="P", help="announcements lost, 0 to 1 (default: 0)")
    add(
        "--weight",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a key of `placement.weights`, or of `placement` itself; several times",
    )
    add("--seed", type=int, default=0, metavar="N", help="of all chance (default: 0)")
    add("--ttft-objective-s", type=float, default=2.0, metavar="S", help="goodput: TTFT at most (default: 2)")
    add("--itl-objective-s", type=float, default=0.05, metavar="S", help="goodput: mean ITL at most (default: 0.05)")
    add(
        "--tune",
        type=Path,
        metavar="FILE",
        help="search the weights of `cost` for the objective (share of requests that meet it, then p90 of TTFT), hold "
        "them against traffic that was left out, and write them as configuration",
    )
    add("--candidates", type=int, default=40, metavar="N", help="tuning: weights to try, 1 to 10000 (default: 40)")
    add(
        "--budget",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="tuning: end the search after this long, 1 to 86400 (default: 600)",
    )
    add("--html", type=Path, metavar="FILE", help="write a page with the table and plots")
    add("--json", action="store_true", help="last line: the rows as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Simulate every policy, or tune; 0.

    Raises:
        ConfigurationError: When an option or the trace can't be used.
    """
    scenario = SCENARIOS[args.workload] if args.workload else None
    plan = check(args, scenario)
    sessions = sessions_for(args, scenario, plan, args.seed)
    if args.tune is not None:
        return _tune(args, scenario, plan, sessions)
    bound = shared_cache_hit_rate(asked_blocks(sessions), sum(shape.num_blocks for shape in plan.shapes))
    rows: list[Row] = []
    with Progress(len(plan.policies) * requests_of(sessions)) as progress:
        for policy in plan.policies:
            progress.now(policy)
            rows.append(simulate(plan, policy, sessions, progress.step))
    show(rows, bound, Console())
    if args.html is not None:
        write_html(args.html, rows, bound)
    if args.json:
        print(json.dumps({"rows": [row.to_dict() for row in rows], "bound_hit_rate": round(bound, 4)}))
    return 0


def sessions_for(args: argparse.Namespace, scenario: Scenario | None, plan: Plan, seed: int) -> list[Session]:
    """Return the traffic that options ask for. Raises ConfigurationError: the trace can't be used."""
    if scenario is None:
        sessions = read_trace(args.trace, plan.shapes[0].block_tokens, args.speed)
        return spread(sessions, args.spread_s / args.speed, seed) if args.spread_s else sessions
    return sessions_of(scenario, plan.shapes[0].block_tokens, args.speed, seed)


def _tune(args: argparse.Namespace, scenario: Scenario | None, plan: Plan, sessions: list[Session]) -> int:
    """Tune on half of a trace and check on the other half; on a workload, check on that of the next seed."""
    if scenario is None:
        tuned_on, held_out = parts_of(sessions)
        source, other = f"{args.trace.name}, first half", "second half"
    else:
        tuned_on, held_out = sessions, sessions_for(args, scenario, plan, args.seed + 1)
        source, other = f"{args.workload}, seed {args.seed}", f"seed {args.seed + 1}"
    total = args.candidates * requests_of(tuned_on) + 2 * requests_of(held_out)
    with Progress(total) as progress:
        tuning = tune(
            plan,
            tuned_on,
            held_out,
            args.candidates,
            args.budget,
            on_candidate=lambda number: progress.now(f"candidate {number} of {args.candidates}"),
            on_job=progress.step,
        )
    show_tuning(tuning, source, other, Console())
    objective = f"TTFT {args.ttft_objective_s:g} s, ITL {args.itl_objective_s:g} s"
    write_text("--tune", args.tune, as_yaml(tuning, f"warmroute simulate --tune on {source}, for {objective}"))
    print(f"written to {args.tune}")
    if args.json:
        print(json.dumps(tuning_dict(tuning)))
    return 0
