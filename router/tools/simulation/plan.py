"""What is simulated, checked: all that is wrong is said at once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from loadtest.workloads.mooncake import recorded_block_tokens
from router.config_placement import POLICIES, PlacementConfig, WeightsConfig
from router.errors import ConfigurationError, Problem
from router.tools.simulation.engine import EngineShape
from router.tools.simulation.figures import Objective
from router.tools.simulation.peers import PEERS
from router.tools.simulation.run import Change
from router.tools.simulation.warmroute import Hearing
from router.tools.simulation.workloads import Scenario


@dataclass(frozen=True, slots=True)
class Plan:
    """All but the requests.

    Attributes:
        policies: Rows of the result, in order.
        engine: A name in `ENGINES`.
        shapes: One a replica.
        placement: The router's configuration, whatever the policy.
        hearing: What `cost` knows.
        changes: Who leaves and joins.
        exact: Policies whose ledgers are the engines' own.
        routers: How many share the traffic.
    """

    policies: Sequence[str]
    engine: str
    shapes: Sequence[EngineShape]
    changes: Sequence[Change]
    placement: PlacementConfig
    hearing: Hearing
    exact: frozenset[str]
    routers: int
    objective: Objective
    seed: int


_RANGES: dict[str, tuple[float, float]] = {
    "replicas": (1, 1_000),
    "blocks": (1, 10**8),
    "block_tokens": (1, 10**6),
    "decode_step_s": (0, 60),
    "decode_request_s": (0, 60),
    "speed": (1e-6, 1e6),
    "spread_s": (0, 3_600),
    "routers": (1, 64),
    "event_delay_s": (0, 3_600),
    "event_loss_share": (0, 1),
    "ttft_objective_s": (1e-6, 1e6),
    "itl_objective_s": (1e-6, 1e6),
    "candidates": (1, 10_000),
    "budget": (1, 86_400),
}
"""Options that are numbers: least and most."""


TRACE_BLOCK_TOKENS, WORKLOAD_BLOCK_TOKENS = 512, 64


def check(args: argparse.Namespace, scenario: Scenario | None) -> Plan:
    """Make the plan that options ask for; what they leave out is the workload's.

    Raises:
        ConfigurationError: All options that can't be used.
    """
    problems: list[Problem] = []
    if args.block_tokens is None:
        args.block_tokens = (
            WORKLOAD_BLOCK_TOKENS if scenario is not None else recorded_block_tokens(args.trace) or TRACE_BLOCK_TOKENS
        )
    if args.replicas is None and scenario is not None:
        args.replicas = scenario.replicas
    if args.blocks is None and scenario is not None:
        args.blocks = max(1, scenario.cache_tokens // max(1, args.block_tokens))
    for name, (least, most) in _RANGES.items():
        value, option = getattr(args, name), "--" + name.replace("_", "-")
        if value is None:
            problems.append(Problem(option, "is missing", "a trace needs it"))
        elif not least <= value <= most:
            problems.append(Problem(option, f"{value} is out of range", f"{least:g} to {most:g}"))
    policies = [name.strip() for name in args.policy.split(",") if name.strip()]
    known = [*POLICIES, *PEERS]
    problems += [
        Problem("--policy", f"there is no policy {name[:64]!r}", "one of: " + ", ".join(known))
        for name in policies
        if name not in known
    ]
    if args.tune is not None:
        if set(policies) - {"cost"}:
            problems.append(Problem("--policy", "tuning is of `cost`", "leave it out with --tune"))
        policies = ["cost"]
    if not policies:
        problems.append(Problem("--policy", "names no policy", "one of: " + ", ".join(known)))
    speeds: Sequence[float] = scenario.speeds if scenario is not None else (8_000.0,)
    if args.prefill_tokens_per_s is not None:
        speeds = _speeds(args.prefill_tokens_per_s, problems)
    placement = _placement(args.weight, speeds, problems, warm_joins=args.warm_joins)
    if problems or placement is None:
        raise ConfigurationError(problems)
    shapes = [
        EngineShape(
            args.blocks,
            args.block_tokens,
            speeds[replica % len(speeds)],
            args.decode_step_s,
            decode_request_s=args.decode_request_s,
        )
        for replica in range(args.replicas)
    ]
    own = set(POLICIES)
    exact = {"router": set(), "exact": own, "default": own - {"cost"}}[args.knowledge]
    return Plan(
        policies=policies,
        engine=args.engine,
        shapes=shapes,
        changes=[]
        if scenario is None
        else [change for change in scenario.changes if change.joins or change.replica < args.replicas],
        placement=placement,
        hearing=Hearing(
            events=not args.approximate,
            event_delay_s=args.event_delay_s,
            event_loss_share=args.event_loss_share,
            shared_load=not args.no_shared_load,
        ),
        exact=frozenset(exact),
        routers=args.routers,
        objective=Objective(args.ttft_objective_s, args.itl_objective_s),
        seed=args.seed,
    )


def _speeds(text: str, problems: list[Problem]) -> list[float]:
    try:
        speeds = [float(part) for part in text.split(",")]
    except ValueError:
        speeds = []
    if not speeds or not all(0 < speed <= 1e7 for speed in speeds):
        problems.append(Problem("--prefill-tokens-per-s", f"{text[:64]!r} is no speed", "over 0 and up to 1e7"))
        return [1.0]
    return speeds


def _placement(
    pairs: Sequence[str], speeds: Sequence[float], problems: list[Problem], *, warm_joins: bool
) -> PlacementConfig | None:
    """Return the configuration with `--weight` in it; a router's first guess of the speed is the mean."""
    values: dict[str, object] = {"prefill_tokens_per_s": sum(speeds) / len(speeds), "warming": {"join": warm_joins}}
    weights: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            problems.append(Problem("--weight", f"{pair[:64]!r} has no value", "NAME=VALUE"))
        elif name in WeightsConfig.model_fields:
            weights[name] = value
        elif name in PlacementConfig.model_fields and name not in ("policy", "weights"):
            values[name] = value
        else:
            names = [*WeightsConfig.model_fields, *PlacementConfig.model_fields]
            known = ", ".join(name for name in names if name not in ("policy", "weights"))
            problems.append(Problem("--weight", f"there is no weight {name[:64]!r}", f"one of: {known}"))
    try:
        return PlacementConfig.model_validate({**values, "weights": weights})
    except ValidationError as error:
        problems += [Problem(f"--weight {one['loc'][-1]}", one["msg"]) for one in error.errors()]
        return None
