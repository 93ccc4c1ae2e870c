"""Searches the weights of `cost` for a trace and an objective.

The default comes first, so that whatever is found is better than it. Then a third of the candidates are drawn at random
over the whole of the ranges, and the others near the best so far, ever nearer. All draws come from the seed, and each
candidate depends on nothing but the results before it: a run that is not cut short by its budget repeats itself.

What was found is held against traffic that it was not found on; where it is no better there, the default is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import yaml

from router.config_placement import WeightsConfig
from router.tools.simulation.figures import Row
from router.tools.simulation.plan import Plan
from router.tools.simulation.policies import simulate
from router.tools.simulation.requests import Session

TUNED: dict[str, tuple[float, float]] = {
    "running_tokens": (0.0, 200.0),
    "held_share": (0.0, 0.3),
    "price_base": (0.5, 4.0),
    "price_per_backlog_s": (0.0, 8.0),
    "price_max": (4.0, 40.0),
}
"""Weights that are searched: least and most. Tiers and trust are facts of a fleet and not a matter of taste."""
RANDOM_SHARE = 1 / 3
FIRST_REACH, LAST_REACH = 0.5, 0.05
"""How far from the best a candidate is drawn, as a share of each range: at first, and at the end."""
DIGITS = 3

Weights = dict[str, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Weights, and what they give."""

    weights: Weights
    row: Row

    @property
    def rank(self) -> tuple[float, float]:
        """Lower is better: first the share of requests that met the objective, then the p90 of the first token."""
        return (-round(self.row.goodput_share, DIGITS), round(self.row.ttft_p90_s, DIGITS))


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search came to.

    Attributes:
        candidates: All that were tried, the default first.
        best: The best of them.
        held_out: What the default and the best give on the other traffic.
        kept: The weights to use: the best's, or the default's where the best did not hold.
        cut_short: Whether the budget ended it before all candidates were tried.
    """

    candidates: Sequence[Candidate]
    best: Candidate
    held_out: tuple[Candidate, Candidate]
    kept: Weights
    cut_short: bool


def tune(
    plan: Plan,
    tuned_on: Sequence[Session],
    held_out: Sequence[Session],
    most: int,
    budget_s: float,
    *,
    on_candidate: Callable[[int], None] = lambda number: None,
    on_job: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Search.

    Args:
        tuned_on, held_out: Two parts of the traffic.
        most: Candidates, 1 or more.
        budget_s: No candidate begins that would end later, with what remains to be done after it; the default and the
            check are always run.
        on_candidate: Told the number of each candidate before it runs, from 1.
    """
    begin_s = clock()
    candidates: list[Candidate] = []
    longest_s = 0.0
    for number, weights in enumerate(_drawn(plan, most, candidates), 1):
        if candidates and clock() - begin_s + 3 * longest_s > budget_s:
            break
        on_candidate(number)
        started_s = clock()
        candidates.append(_try(plan, weights, tuned_on, on_job))
        longest_s = max(longest_s, clock() - started_s)
    default, best = candidates[0], min(candidates, key=lambda one: one.rank)
    checks = (_try(plan, default.weights, held_out, on_job), _try(plan, best.weights, held_out, on_job))
    kept = best if checks[1].rank < checks[0].rank else default
    return Tuning(candidates, best, checks, kept.weights, cut_short=len(candidates) < most)


def parts_of(sessions: Sequence[Session]) -> tuple[list[Session], list[Session]]:
    """Split a trace in the middle of its time: what is tuned on, and what is held out (which begins at 0 again)."""
    first_s, last_s = sessions[0].start_s, sessions[-1].start_s
    middle_s = (first_s + last_s) / 2
    earlier = [session for session in sessions if session.start_s <= middle_s]
    later = [replace(session, start_s=session.start_s - middle_s) for session in sessions if session.start_s > middle_s]
    return earlier, later or earlier


def as_yaml(tuning: Tuning, how: str) -> str:
    """Return the section for the router's configuration file.

    Args:
        how: Where the weights come from, for the comment; one line.
    """
    default, best = tuning.held_out
    chosen = best if tuning.kept == best.weights else default
    told = (
        f"# {how}\n"
        f"# On traffic that was held out: {chosen.row.goodput_share:.1%} met the objective, p90 of the first token "
        f"{chosen.row.ttft_p90_s:.2f} s\n"
        f"# (default weights: {default.row.goodput_share:.1%}, {default.row.ttft_p90_s:.2f} s).\n"
    )
    return told + yaml.safe_dump({"placement": {"policy": "cost", "weights": tuning.kept}}, sort_keys=False)


def _drawn(plan: Plan, most: int, tried: Sequence[Candidate]) -> Iterator[Weights]:
    """Yield the weights to try; what was found until then is in `tried`."""
    rng = Random(f"{plan.seed}/tuning")
    yield {name: getattr(plan.placement.weights, name) for name in TUNED}
    at_random = round(most * RANDOM_SHARE)
    for number in range(1, most):
        if number <= at_random:
            yield _valid({name: rng.uniform(*bounds) for name, bounds in TUNED.items()})
            continue
        best = min(tried, key=lambda one: one.rank).weights
        done = (number - at_random) / max(1, most - 1 - at_random)
        reach = FIRST_REACH * (LAST_REACH / FIRST_REACH) ** done
        moved = rng.sample(list(TUNED), 2)  # few at once: a good candidate is lost when all change
        yield _valid({name: _near(name, best[name], reach, rng) if name in moved else best[name] for name in TUNED})


def _near(name: str, value: float, reach: float, rng: Random) -> float:
    low, high = TUNED[name]
    return min(high, max(low, value + rng.uniform(-reach, reach) * (high - low)))


def _valid(weights: Weights) -> Weights:
    rounded = {name: float(f"{value:.3g}") for name, value in weights.items()}
    rounded["price_max"] = max(rounded["price_max"], rounded["price_base"])
    return rounded


def _try(plan: Plan, weights: Weights, sessions: Sequence[Session], on_job: Callable[[], None] | None) -> Candidate:
    all_weights = WeightsConfig.model_validate({**plan.placement.weights.model_dump(), **weights})
    placement = plan.placement.model_copy(update={"weights": all_weights})
    return Candidate(weights, simulate(replace(plan, placement=placement), "cost", sessions, on_job))
