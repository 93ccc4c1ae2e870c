"""A run against another: a verdict for each measure.

worse     it differs for the worse by more than the tolerance, and the 95% confidence interval excludes no difference
better    the same for the better
same      the whole interval lies within the tolerance
unclear   none of these: more samples would tell; or one of the two was spoilt by its generator
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from loadtest.report.measures import SPECS, Measure, Spec
from router.errors import ConfigurationError, Problem

FORMAT = 1


class Verdict(StrEnum):
    """What a comparison says."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of one run against another's.

    Attributes:
        run: Which run: workload and policy.
        measure: Its name, of `SPECS`.
        before: The other's value.
        after: This one's.
        low: Of the 95% confidence interval of after - before.
        high: Its other end.
        verdict: What it comes to.
        why: More about an unclear one.
    """

    run: str
    measure: str
    before: float
    after: float
    low: float
    high: float
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """One run as far as comparisons need it."""

    measures: Mapping[str, Measure]
    was_bottleneck: bool


def compare(run: str, before: Stored, after: Stored) -> list[Comparison]:
    """Compare all measures that both have, and that have a better and a worse."""
    found = []
    for name, spec in SPECS.items():
        old, new = before.measures.get(name), after.measures.get(name)
        if spec.better is None or old is None or new is None or old.value is None or new.value is None:
            continue
        spoilt = spec.is_a_time and (before.was_bottleneck or after.was_bottleneck)
        found.append(_judge(run, name, spec, old, new, spoilt))
    return found


def compare_all(before: Mapping[str, Stored], after: Mapping[str, Stored]) -> list[Comparison]:
    """Compare all runs that both have."""
    return [each for name in after if name in before for each in compare(name, before[name], after[name])]


def _judge(run: str, name: str, spec: Spec, old: Measure, new: Measure, spoilt: bool) -> Comparison:
    before, after = old.value or 0.0, new.value or 0.0
    difference = after - before
    half = 1.96 * math.hypot(old.standard_error or 0.0, new.standard_error or 0.0)
    tolerance = spec.tolerance * abs(before) if spec.relative else spec.tolerance
    gain = difference if spec.better == "higher" else -difference
    why = ""
    if spoilt:
        verdict, why = Verdict.UNCLEAR, "the generator was the bottleneck"
    elif old.standard_error is None or new.standard_error is None:
        verdict, why = Verdict.UNCLEAR, "its error is not known"
    elif gain < -tolerance and gain + half < 0:
        verdict = Verdict.WORSE
    elif gain > tolerance and gain - half > 0:
        verdict = Verdict.BETTER
    elif abs(gain) + half <= tolerance:
        verdict = Verdict.SAME
    else:
        verdict, why = Verdict.UNCLEAR, "more samples would tell"
    return Comparison(run, name, before, after, difference - half, difference + half, verdict, why)


def write(path: Path, settings: Mapping[str, Any], runs: Mapping[str, Stored]) -> None:
    """Store runs as a baseline."""
    stored = {
        "format": FORMAT,
        "settings": dict(settings),
        "runs": {
            name: {
                "was_bottleneck": run.was_bottleneck,
                "measures": {key: measure.to_dict() for key, measure in run.measures.items()},
            }
            for name, run in runs.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read(path: Path, settings: Mapping[str, Any]) -> dict[str, Stored]:
    """Read a baseline that was made with the same settings.

    Raises:
        ConfigurationError: It can't be read, or is of other traffic or another fleet: each setting that differs.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']}, not {FORMAT}")
        runs = {
            name: Stored({key: Measure(**value) for key, value in run["measures"].items()}, bool(run["was_bottleneck"]))
            for name, run in stored["runs"].items()
        }
        old = dict(stored["settings"])
    except OSError as error:
        raise ConfigurationError([Problem("--baseline", f"{path}: {error.strerror}", "a stored report")]) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError([Problem("--baseline", f"{path} is no baseline: {error}", "a stored one")]) from None
    problems = [
        Problem("--baseline", f"{path} was made with {key} {old.get(key)!r}, not {settings.get(key)!r}", "the same")
        for key in sorted({*old, *settings})
        if old.get(key) != settings.get(key)
    ]
    if problems:
        raise ConfigurationError(problems)
    return runs


def worst(comparisons: Sequence[Comparison]) -> Verdict:
    """Return worse if anything is, else unclear, same or better."""
    order = (Verdict.WORSE, Verdict.UNCLEAR, Verdict.SAME, Verdict.BETTER)
    present = {comparison.verdict for comparison in comparisons}
    return next((verdict for verdict in order if verdict in present), Verdict.UNCLEAR)
