"""What is told at the end of a run: the hit rate, whether the generators kept up, and a report where it is wanted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from locust.env import Environment

from loadtest.driver.generator import Ticks
from loadtest.driver.scraping import Scrape, Scraper, metrics_pages
from loadtest.report import baseline
from loadtest.report.page import Report, now, versions
from loadtest.report.runs import Run
from loadtest.swarm.figures import Figures
from loadtest.swarm.options import names, sending_of, traffic_of

FAILED = 1
BLOCK_TOKENS = 16


class Reporting:
    """Of one run, where its figures are gathered.

    Attributes:
        ticks: Of this process, where it sends itself.
    """

    def __init__(self, environment: Environment, options: argparse.Namespace, figures: Figures) -> None:
        self.ticks: Ticks | None = None
        self._environment = environment
        self._options = options
        self._traffic = traffic_of(options)
        self._figures = figures
        self._scraper: Scraper | None = None
        self._stored: dict[str, baseline.Stored] | None = None

    def check(self) -> None:
        """Read what the options name.

        Raises:
            ConfigurationError: The keys or the baseline can't be used.
        """
        sending_of(self._options)
        if self._options.baseline:
            self._stored = baseline.read(Path(self._options.baseline), self._settings)

    def begin(self) -> None:
        """Read metrics from now on, where a report is wanted."""
        if self._options.report and self._environment.host:
            self._scraper = Scraper(metrics_pages(self._environment.host, names(self._options.metrics)))
            self._scraper.__enter__()

    def end(self, **_: Any) -> None:
        """Tell it all; where something got worse, locust's exit code is 1."""
        figures, options = self._figures, self._options
        scrapes: list[Scrape] = []
        if self._scraper is not None:
            self._scraper.__exit__(None, None, None)
            begun_s = self._scraper.scrapes[0].at_s if self._scraper.scrapes else 0.0
            scrapes = [Scrape(each.at_s - begun_s, each.source, each.figures) for each in self._scraper.scrapes]
        if self.ticks is not None:
            figures.note(self.ticks)
        generator = figures.generator()
        print(figures.totals.sentence(), generator.sentence(), sep="\n", flush=True)
        if not (options.report or options.baseline or options.write_baseline):
            return
        run = Run(
            workload=self._traffic.workload,
            policy="locust",
            records=figures.records,
            generator=generator,
            block_size=BLOCK_TOKENS,
            stages=self._traffic.stages,
            scrapes=scrapes,
        )
        stored, after = self._stored, {run.name: run.stored}
        report = Report(
            runs=[run],
            settings=self._settings,
            versions=versions("locust"),
            made_at=now(),
            baseline=None if stored is None else baseline.compare_all(stored, after),
            baseline_name=options.baseline,
        )
        if options.report:
            report.write(Path(options.report), with_records=True)
        if options.write_baseline:
            baseline.write(Path(options.write_baseline), self._settings, after)
        print(report.summary(), flush=True)
        if report.failed:
            self._environment.process_exit_code = FAILED

    @property
    def _settings(self) -> dict[str, Any]:
        options, traffic = self._options, self._traffic
        return {
            "host": self._environment.host,
            "model": options.model,
            "adapters": list(names(options.adapters)),
            "users": options.user_stages or (options.num_users if traffic.users else 0),
            "sessions": options.sessions,
            "warm-up s": options.warm_up,
            "stream": not options.no_stream,
            "traffic": [traffic.to_dict()],
        }
