"""The report: one HTML file that needs nothing else, and the same as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from loadtest.report.baseline import Comparison, Verdict, compare, worst
from loadtest.report.measures import SPECS
from loadtest.report.plots import bars, lines, shown, stacked
from loadtest.report.runs import Run
from loadtest.report.scraped import scraped_line

TEMPLATE = "page.html.j2"
SINCE = "seconds since the start"
DEFAULT_POLICY = "cost"
HEADLINES = ("hit_rate", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "output_tokens_per_s", "spread", "error_share")


@dataclass(frozen=True)
class Report:
    """All runs and what they come to.

    Attributes:
        runs: In the order in which they ran.
        settings: What must be equal for a comparison to mean something.
        versions: Of what took part.
        baseline: Comparisons with a stored report; None: there was none.
        baseline_name: Which.
        made_at: When, as text.
        failed_at_most: Share of requests that may fail where there is no baseline, 0 to 1.
    """

    runs: Sequence[Run]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    made_at: str
    baseline: Sequence[Comparison] | None = None
    baseline_name: str = ""
    notes: Sequence[str] = field(default=())
    failed_at_most: float = 0.0

    def against_default(self) -> list[Comparison]:
        """Compare the default policy with each other one of the same workload: `better` is the default ahead."""
        found: list[Comparison] = []
        for workload in dict.fromkeys(run.workload for run in self.runs):
            here = {run.policy: run for run in self.runs if run.workload == workload}
            default = here.pop(DEFAULT_POLICY, None)
            for other in here.values() if default is not None else ():
                assert default is not None
                found += compare(other.name, other.stored, default.stored)
        return [each for each in found if each.measure in ("hit_rate", "ttft_p90_s")]

    @property
    def failed(self) -> bool:
        """Whether a measure got worse than the baseline's, or a request failed where there is none to compare with."""
        if self.baseline is not None:
            return worst(self.baseline) is Verdict.WORSE
        return any((run.measures["error_share"].value or 0.0) > self.failed_at_most for run in self.runs)

    def not_ahead(self) -> list[Comparison]:
        """Return where the default policy is worse than another, or can't be told from it."""
        return [each for each in self.against_default() if each.verdict is not Verdict.BETTER]

    def summary(self) -> str:
        """Tell the figures, a line a run, then what changed, where the default is not ahead, and the verdict."""
        lines = []
        for run in self.runs:
            told = ", ".join(f"{name} {shown(run.measures[name].value, SPECS[name].unit)}" for name in HEADLINES)
            lines.append(f"{run.name}: {told}")
        changed = [each for each in self.baseline or () if each.verdict in (Verdict.WORSE, Verdict.BETTER)]
        for title, rows in (("", changed), (f"{DEFAULT_POLICY} is not ahead: ", self.not_ahead())):
            for each in rows:
                unit = SPECS[each.measure].unit
                values = f"{shown(each.before, unit)} -> {shown(each.after, unit)}"
                lines.append(f"{title}{each.verdict}: {each.run} {each.measure} {values}")
        return "\n".join([*lines, "FAILED" if self.failed else "passed"])

    def write(self, folder: Path, with_records: bool = False) -> None:
        """Write report.html and report.json, and records.jsonl with every request if it is wanted."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text(self.to_html(), encoding="utf-8")
        (folder / "report.json").write_text(self.to_json(), encoding="utf-8")
        if with_records:
            with (folder / "records.jsonl").open("w", encoding="utf-8") as file:
                for run in self.runs:
                    for record in run.records:
                        file.write(json.dumps({"run": run.name, **record.to_dict()}) + "\n")

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(
            {
                "made_at": self.made_at,
                "settings": dict(self.settings),
                "versions": dict(self.versions),
                "notes": list(self.notes),
                "runs": [run.to_dict() for run in self.runs],
                "default_against_others": [asdict(each) for each in self.against_default()],
                "baseline": None if self.baseline is None else [asdict(each) for each in self.baseline],
                "failed": self.failed,
            },
            indent=1,
        )

    def to_html(self) -> str:
        """Return it as a page."""
        loader = FileSystemLoader(Path(__file__).parent)
        environment = Environment(loader=loader, autoescape=select_autoescape(default=True), trim_blocks=True)
        environment.globals.update(specs=SPECS, shown=shown)
        workloads = list(dict.fromkeys(run.workload for run in self.runs))
        return environment.get_template(TEMPLATE).render(
            report=self,
            headlines=HEADLINES,
            groups=(("kinds", "kind"), ("tenants", "tenant"), ("models", "model or adapter")),
            workloads=[(name, *self._section(name)) for name in workloads],
            comparisons=[
                ("Against the baseline", self.baseline or ()),
                (f"The default policy ({DEFAULT_POLICY}) against each other", self.against_default()),
            ],
        )

    def _section(self, workload: str) -> tuple[list[Run], list[Markup]]:
        runs = [run for run in self.runs if run.workload == workload]
        drawn = []
        for name in ("hit_rate", "ttft_p50_s", "ttft_p90_s"):
            spec = SPECS[name]
            values = [(run.policy, run.measures[name].value, run.measures[name].interval) for run in runs]
            drawn.append(bars(f"{spec.title} by policy, with 95% intervals", values, spec.unit))
        if any(run.stages for run in runs):
            for name in ("ttft_p50_s", "ttft_p90_s"):
                by_rate = {run.policy: _by_rate(run, name) for run in runs}
                drawn.append(lines(f"{SPECS[name].title} by arrival rate", by_rate, "sessions a second", "s"))
        drawn.append(stacked("Requests by replica", {run.policy: run.replica_requests for run in runs}))
        ledgers = {run.policy: dict(run.ledger) for run in runs if run.ledger}
        if ledgers:
            drawn.append(stacked("Where prompt tokens went (the router's ledger)", ledgers))
        marks = [at_s for run in runs for at_s, _ in run.events]
        for key, title, unit in (
            ("hit_rate", "Hit rate over time", "share"),
            ("ttft_median_s", "Median TTFT over time", "s"),
            ("requests", "Requests over time", ""),
        ):
            over_time = {run.policy: [(each["at_s"], each[key]) for each in run.time_line] for run in runs}
            drawn.append(lines(title, over_time, SINCE, unit, marks))
        for key, title, unit in (
            ("waiting", "Requests waiting in all engines (their metrics)", ""),
            ("running", "Requests running in all engines (their metrics)", ""),
            ("kv_usage", "KV blocks in use, mean of all engines (their metrics)", "share"),
        ):
            told = {run.policy: [(each["at_s"], each.get(key)) for each in scraped_line(run.scrapes)] for run in runs}
            if any(told.values()):
                drawn.append(lines(title, told, SINCE, unit, marks))
        return runs, [Markup(each) for each in drawn]  # noqa: S704 - plots.py escapes every label


def now() -> str:
    """Return when a report is made."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def versions(*also: str) -> dict[str, str]:
    """Return the versions of what makes the traffic, and of other packages."""
    told = {name: version(name) for name in ("warmroute", "aiohttp", "tokenizers", "uvloop", *also)}
    return told | {"python": platform.python_version(), "system": platform.platform()}


def _by_rate(run: Run, name: str) -> list[tuple[float, float | None]]:
    points = []
    for number, stage in enumerate(run.stages):
        figures = run.stages_figures.get(str(number), {})
        rate = (stage.rate_per_s + (stage.rate_per_s if stage.end_rate_per_s is None else stage.end_rate_per_s)) / 2
        points.append((rate, figures.get(name)))
    return sorted(points, key=lambda point: point[0])
