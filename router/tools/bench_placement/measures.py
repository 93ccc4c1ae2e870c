"""The measures: which runs, and what their tables say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from router.tools.bench_placement.cells import Bench, Result
from router.tools.simulation.peers import PEERS
from router.tools.simulation.workloads import SCENARIOS

Table = Iterator[Sequence[str]]
"""Rows of cells, the heading first."""
SIMPLE = ("round-robin", "least-loaded", "power-of-two", "consistent-hash")
"""Rules without knowledge of caches, which are baselines, too."""
GIVEN_UP = 1.5
"""A rule whose p90 on the first seed is this many times the best's is not run on the others."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the command was given.

    Attributes:
        trace: Mooncake's conversation trace; None leaves out what needs it.
        seeds: Of generated workloads.
        everything: Run every rule on every seed.
    """

    trace: Path | None
    seeds: Sequence[int]
    everything: bool


def serial(bench: Bench, setting: Setting) -> Table:
    """Published rules and the default on the trace: 8 replicas of 2,000 blocks, serial engines."""
    yield ("rule", "hit, 1x", "p90, 1x", "hit, 2x", "p90, 2x")
    for policy in (
        "round-robin",
        "least-loaded",
        "llm-d",
        "dynamo",
        "llm-d-sticky",
        "price-8",
        "price-backlog",
        "cost",
    ):
        cells = [_on_trace(bench, setting, policy, speed, 8) for speed in (1, 2)]
        yield (_name(policy), *(text for cell in cells for text in (f"{cell.hit_rate:.3f}", _seconds(cell.p90_s))))


GRID_PEERS = ("llm-d", "dynamo", "llm-d-sticky", "price-8", "price-backlog")


def grid(bench: Bench, setting: Setting) -> Table:
    """The default against the best of the published rules, at other speeds and fleet sizes."""
    yield ("replicas", "speed", "default p90", "best rule", "its p90", "difference", "default goodput", "its goodput")
    for replicas in (4, 8, 16):
        for speed in (0.5, 1, 1.5, 2):
            own = _on_trace(bench, setting, "cost", speed, replicas)
            rules = {policy: _on_trace(bench, setting, policy, speed, replicas) for policy in GRID_PEERS}
            best = min(rules, key=lambda policy: rules[policy].p90_s)
            yield (
                str(replicas),
                f"{speed:g}x",
                _seconds(own.p90_s),
                best,
                _seconds(rules[best].p90_s),
                _difference(own.p90_s, rules[best].p90_s),
                f"{own.goodput:.1%}",
                f"{rules[best].goodput:.1%}",
            )


def batched(bench: Bench, setting: Setting) -> Table:
    """Every generated workload: the default against the best of all other rules, medians over the seeds."""
    yield ("workload", "default p90", "best other rule", "its p90", "difference", "default hit", "its hit")
    for workload in SCENARIOS:
        own = _over_seeds(bench, setting, workload, "cost", setting.seeds)
        others = {policy: _over_seeds(bench, setting, workload, policy, setting.seeds[:1]) for policy in _others()}
        least = min(_p90(results) for results in others.values())
        for policy, results in others.items():
            if setting.everything or _p90(results) <= GIVEN_UP * least:
                others[policy] = _over_seeds(bench, setting, workload, policy, setting.seeds)
        best = min(others, key=lambda policy: (len(others[policy]) < len(setting.seeds), _p90(others[policy])))
        yield (
            workload,
            _seconds(_p90(own)),
            best,
            _seconds(_p90(others[best])),
            _difference(_p90(own), _p90(others[best])),
            f"{median(one.hit_rate for one in own):.3f}",
            f"{median(one.hit_rate for one in others[best]):.3f}",
        )


def llm_d(bench: Bench, setting: Setting) -> Table:
    """llm-d's workload: what a router hears, late, against the same rule with exact state and no delay."""
    yield ("seed", "goodput", "with exact state", "share", "output tokens/s", "with exact state")
    for seed in setting.seeds:
        options = ("--workload", "llm-d", "--engine", "batched", "--policy", "cost", "--seed", seed)
        own, exact = bench.run(*options), bench.run(*options, "--knowledge", "exact")
        yield (
            str(seed),
            f"{own.goodput:.1%}",
            f"{exact.goodput:.1%}",
            f"{own.goodput / exact.goodput:.1%}" if exact.goodput else "-",
            f"{own.figures['output_tokens_per_s']:,.0f}",
            f"{exact.figures['output_tokens_per_s']:,.0f}",
        )


def routers(bench: Bench, setting: Setting) -> Table:
    """Eight routers against one: with what they tell each other, and without."""
    yield ("traffic", "routers", "hit", "p90", "difference")
    for name, options in _traffic(setting):
        one = _all_seeds(bench, setting, options)
        for routers, extra in ((1, ()), (8, ()), (8, ("--no-shared-load",))):
            results = _all_seeds(bench, setting, (*options, "--routers", routers, *extra)) if routers > 1 else one
            said = f"{routers}, load not shared" if extra else str(routers)
            yield (
                name,
                said,
                f"{median(cell.hit_rate for cell in results):.3f}",
                _seconds(_p90(results)),
                _difference(_p90(results), _p90(one)),
            )


def hearing(bench: Bench, setting: Setting) -> Table:
    """Events that come late, or never."""
    yield ("traffic", "events", "hit", "p90")
    for name, options in _traffic(setting):
        for said, extra in (
            ("after 20 ms", ()),
            ("after 0.5 s", ("--event-delay-s", 0.5)),
            ("after 5 s", ("--event-delay-s", 5)),
            ("1% lost", ("--event-loss-share", 0.01)),
            ("10% lost", ("--event-loss-share", 0.1)),
            ("none: remembered", ("--approximate",)),
        ):
            results = _all_seeds(bench, setting, (*options, *extra))
            yield (name, said, f"{median(cell.hit_rate for cell in results):.3f}", _seconds(_p90(results)))


def duration(bench: Bench, setting: Setting) -> Table:
    """What the simulator takes for the whole trace over 8 replicas."""
    yield ("engine", "CPU", "limit")
    for engine, limit in (("serial", "20 s"), ("batched", "90 s")):
        result = _on_trace(bench, setting, "cost", 1, 8, "--engine", engine)
        yield (engine, _seconds(result.cpu_s), limit)


MEASURES: dict[str, Callable[[Bench, Setting], Table]] = {
    "serial": serial,
    "grid": grid,
    "batched": batched,
    "llm-d": llm_d,
    "routers": routers,
    "hearing": hearing,
    "duration": duration,
}
NEED_TRACE = ("serial", "grid", "duration")


def _others() -> list[str]:
    return [*PEERS, *SIMPLE]


def _on_trace(bench: Bench, setting: Setting, policy: str, speed: float, replicas: int, *extra: str | float) -> Result:
    sizes = ("--replicas", replicas, "--blocks", 2_000)
    return bench.run("--trace", str(setting.trace), *sizes, "--speed", speed, "--policy", policy, *extra)


def _traffic(setting: Setting) -> Iterator[tuple[str, tuple[str | float, ...]]]:
    if setting.trace is not None:
        for speed in (1, 2):
            sizes = ("--replicas", 8, "--blocks", 2_000, "--speed", speed, "--spread-s", 3)
            yield f"trace, {speed}x", ("--trace", str(setting.trace), *sizes, "--policy", "cost")
    yield "chat", ("--workload", "chat", "--engine", "batched", "--policy", "cost")


def _all_seeds(bench: Bench, setting: Setting, options: Sequence[str | float]) -> list[Result]:
    return [bench.run(*options, "--seed", seed) for seed in setting.seeds]


def _over_seeds(bench: Bench, setting: Setting, workload: str, policy: str, seeds: Sequence[int]) -> list[Result]:
    options = ("--workload", workload, "--engine", "batched", "--policy", policy)
    return [bench.run(*options, "--seed", seed) for seed in seeds]


def _p90(results: Sequence[Result]) -> float:
    return median(one.p90_s for one in results)


def _name(policy: str) -> str:
    return "default, as a router sees it" if policy == "cost" else policy


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _difference(own: float, other: float) -> str:
    return f"{own / other - 1:+.1%}" if other else "-"
