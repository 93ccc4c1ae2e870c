"""A run's measures, each with a standard error.

Standard errors come from a bootstrap over sessions, not over requests: turns of one conversation hit or miss together,
so that a thousand of them tell less than a thousand conversations would. They say how much other traffic of the same
kind would differ; they do not know of another machine, or of a busier hour.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from loadtest.driver.records import Record
from loadtest.report.percentiles import quantile, samples_needed

RESAMPLES = 100
BINS = 60
"""Of the time line."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What is measured.

    Attributes:
        title: For people.
        unit: `share`, `s`, `tokens/s` or `ratio`.
        better: Which way is better; None: neither, so there is no verdict.
        tolerance: A difference that nobody minds.
        relative: Whether `tolerance` is a share of the value before, rather than in the unit.
    """

    title: str
    unit: str
    better: Literal["higher", "lower"] | None
    tolerance: float
    relative: bool = True

    @property
    def is_a_time(self) -> bool:
        """Whether a generator that does not keep up spoils it."""
        return self.unit in ("s", "tokens/s")


SPECS: Mapping[str, Spec] = {
    "hit_rate": Spec("hit rate (cached of prompt tokens)", "share", "higher", 0.01, relative=False),
    "ttft_p50_s": Spec("TTFT p50", "s", "lower", 0.1),
    "ttft_p90_s": Spec("TTFT p90", "s", "lower", 0.1),
    "ttft_p99_s": Spec("TTFT p99", "s", "lower", 0.15),
    "itl_p50_s": Spec("ITL p50", "s", "lower", 0.1),
    "itl_p99_s": Spec("ITL p99", "s", "lower", 0.15),
    "total_p50_s": Spec("whole answer p50", "s", "lower", 0.1),
    "total_p90_s": Spec("whole answer p90", "s", "lower", 0.1),
    "output_tokens_per_s": Spec("output", "tokens/s", "higher", 0.1),
    "error_share": Spec("failed requests", "share", "lower", 0.001, relative=False),
    "as_predicted_share": Spec("cached as the router said, within a block", "share", "higher", 0.02, relative=False),
    "spread": Spec("requests of the busiest replica over the mean", "ratio", None, 0.0),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure.

    Attributes:
        value: None where it could not be measured.
        standard_error: None where it is not known.
        samples: Requests, or gaps between tokens, that it is made of.
        why: Why there is no value.
    """

    value: float | None
    standard_error: float | None = None
    samples: int = 0
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval; None where it is not known."""
        if self.value is None or self.standard_error is None:
            return None
        return self.value - 1.96 * self.standard_error, self.value + 1.96 * self.standard_error


def measure(records: Sequence[Record], block_size: int, replicas: int | None = None) -> dict[str, Measure]:
    """Return all measures of `SPECS`.

    Args:
        block_size: Tokens; a prediction is right within one block.
        replicas: How many there are, for the spread; None: those that answered.
    """
    exact = _figures(records, block_size, replicas)
    errors = _standard_errors(records, block_size, replicas)
    return {name: _measure(exact[name], errors.get(name)) for name in SPECS}


def errors_by_cause(records: Iterable[Record]) -> dict[str, int]:
    """Return how many requests failed of what, most first."""
    return dict(Counter(record.cause for record in records if record.cause is not None).most_common())


def by_kind(records: Sequence[Record], block_size: int) -> dict[str, dict[str, Any]]:
    """Return figures for each kind of session."""
    return _grouped(records, lambda record: str(record.kind), block_size)


def by_stage(records: Sequence[Record], block_size: int) -> dict[str, dict[str, Any]]:
    """Return figures for each stage of arrivals."""
    return _grouped(records, lambda record: str(record.stage), block_size)


def by_tenant(records: Sequence[Record], block_size: int) -> dict[str, dict[str, Any]]:
    """Return figures for each tenant, by its number."""
    having = [record for record in records if record.tenant is not None]
    return _grouped(having, lambda record: str(record.tenant), block_size)


def by_model(records: Sequence[Record], block_size: int) -> dict[str, dict[str, Any]]:
    """Return figures for the model and each adapter."""
    return _grouped(records, lambda record: record.model, block_size)


def by_replica(records: Sequence[Record]) -> dict[str, int]:
    """Return how many requests each replica answered, by its name."""
    counts = Counter(record.replica for record in records if record.replica)
    return dict(sorted(counts.items()))


def time_line(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return figures of equal spans of the run, by when requests were due; spans without requests are left out."""
    if not records:
        return []
    begin_s = min(record.intended_s for record in records)
    span_s = max(1.0, (max(record.intended_s for record in records) - begin_s) / BINS)
    bins: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        bins[int((record.intended_s - begin_s) / span_s)].append(record)
    line = []
    for number, inside in sorted(bins.items()):
        ttfts = [record.ttft_s for record in inside if record.ttft_s is not None]
        line.append(
            {
                "at_s": round(begin_s + number * span_s, 3),
                "requests": len(inside),
                "failed": sum(record.cause is not None for record in inside),
                "hit_rate": hit_rate(inside),
                "ttft_median_s": statistics.median(ttfts) if ttfts else None,
                "ttft_max_s": max(ttfts, default=None),
            }
        )
    return line


def _grouped(records: Sequence[Record], key: Any, block_size: int) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return {
        name: {
            "requests": len(group),
            **{
                measure_name: figure[0] if figure[1] >= figure[2] else None
                for measure_name, figure in _figures(group, block_size, None).items()
                if measure_name in ("hit_rate", "ttft_p50_s", "ttft_p90_s", "error_share")
            },
        }
        for name, group in sorted(groups.items())
    }


Figure = tuple[float | None, int, int]
"""A value, the samples it is made of, the samples that it needs."""


def _figures(records: Sequence[Record], block_size: int, replicas: int | None) -> dict[str, Figure]:
    good = [record for record in records if record.cause is None]
    figures: dict[str, Figure] = {}
    told = sum(record.cached_tokens is not None and record.prompt_tokens is not None for record in good)
    figures["hit_rate"] = (hit_rate(good), told, 1)
    ttfts = sorted(record.ttft_s for record in good if record.ttft_s is not None)
    totals = sorted(record.total_s for record in good)
    gaps = sorted(gap for record in good for gap in record.gaps_s)
    for name, values, share in (
        ("ttft_p50_s", ttfts, 0.5),
        ("ttft_p90_s", ttfts, 0.9),
        ("ttft_p99_s", ttfts, 0.99),
        ("itl_p50_s", gaps, 0.5),
        ("itl_p99_s", gaps, 0.99),
        ("total_p50_s", totals, 0.5),
        ("total_p90_s", totals, 0.9),
    ):
        figures[name] = (quantile(values, share) if values else None, len(values), samples_needed(share))
    output = [record.output_tokens for record in good if record.output_tokens is not None]
    lasted_s = _lasted_s(records)
    figures["output_tokens_per_s"] = (sum(output) / lasted_s if output and lasted_s else None, len(output), 1)
    failed = len(records) - len(good)
    figures["error_share"] = (failed / len(records) if records else None, len(records), 1)
    differences = [
        abs(record.cached_tokens - record.matched_tokens)
        for record in good
        if record.cached_tokens is not None and record.matched_tokens is not None
    ]
    right = sum(difference <= block_size for difference in differences)
    figures["as_predicted_share"] = (right / len(differences) if differences else None, len(differences), 1)
    counts = by_replica(good)
    busiest = max(counts.values(), default=0)
    mean = sum(counts.values()) / (replicas or len(counts) or 1)
    figures["spread"] = (busiest / mean if mean else None, sum(counts.values()), 1)
    return figures


def _measure(figure: Figure, standard_error: float | None) -> Measure:
    value, samples, needed = figure
    if not samples or value is None:
        return Measure(None, None, 0, "nothing of it was reported")
    if samples < needed:
        return Measure(None, None, samples, f"needs {needed:,} samples, has {samples:,}")
    return Measure(value, standard_error, samples)


def _standard_errors(records: Sequence[Record], block_size: int, replicas: int | None) -> dict[str, float]:
    sessions: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        sessions[record.session].append(record)
    if len(sessions) < 2:
        return {}
    rng = random.Random(len(records))  # the same records have the same errors
    clusters = list(sessions.values())
    drawn: dict[str, list[float]] = defaultdict(list)
    for _ in range(RESAMPLES):
        resample = [record for cluster in rng.choices(clusters, k=len(clusters)) for record in cluster]
        for name, (value, _, _) in _figures(resample, block_size, replicas).items():
            if value is not None:
                drawn[name].append(value)
    return {name: statistics.stdev(values) for name, values in drawn.items() if len(values) > 1}


def hit_rate(records: Iterable[Record]) -> float | None:
    """Return cached over prompt tokens of the answers that tell both, 0 to 1; None where none does."""
    prompt = cached = 0
    for record in records:
        if record.prompt_tokens is not None and record.cached_tokens is not None:
            prompt += record.prompt_tokens
            cached += record.cached_tokens
    return cached / prompt if prompt else None


def _lasted_s(records: Sequence[Record]) -> float:
    if not records:
        return 0.0
    ends = max(record.intended_s + record.total_s for record in records)
    return max(0.0, ends - min(record.intended_s for record in records))
