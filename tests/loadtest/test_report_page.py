"""The report as a page and as JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

from loadtest.driver.generator import judge
from loadtest.driver.records import Record
from loadtest.driver.scraping import Scrape
from loadtest.report.page import Report
from loadtest.report.runs import Run, ledger_parts
from loadtest.workloads.conversations import Kind
from loadtest.workloads.schedule import Stage


def make_run(policy: str, cached: int, cause: str | None = None) -> Run:
    records = []
    for number in range(200):
        record = Record(f"s{number}", 0, Kind.CHAT, number // 100, number / 10, number / 10)
        record.ttft_s, record.total_s, record.replica = 0.2, 0.5, f"r{number % 2}"
        record.prompt_tokens, record.cached_tokens, record.output_tokens = 100, cached + number % 3, 5
        records.append(record)
    records[0].cause = cause
    generator = judge([0.001] * 200, [0.001] * 200, 0.2, 0.1)
    ledger = {"delivered": 50.0, "lost: tail": 7.0}
    return Run("mixed", policy, records, generator, 16, [Stage(1, 10), Stage(3, 10)], 2, ledger, [(5.0, "r1 died")])


def report(*runs: Run) -> Report:
    return Report(runs, {"seed": 1}, {"python": "3"}, "today")


class Reader(HTMLParser):
    """Collects tags and text, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_else() -> None:
    """No scripts, no addresses; every plot is in it and tells its figures as text."""
    page = report(make_run("cost", 80), make_run("<b>odd</b>", 40)).to_html()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert "script" not in reader.tags
    assert not re.search(r"https?://|\bsrc=|\bhref=|@import", page)
    assert reader.tags.count("svg") == 10
    for told in ("TTFT p90 by arrival rate", "Requests by replica", "Where prompt tokens went", "r1 died", "81.0%"):
        assert told in reader.text
    assert "<b>odd" not in page


def test_json_has_what_the_page_shows() -> None:
    """And the default policy's lead over the other."""
    told = json.loads(report(make_run("cost", 80), make_run("random", 40)).to_json())
    assert [run["policy"] for run in told["runs"]] == ["cost", "random"]
    assert told["runs"][0]["measures"]["hit_rate"]["value"] == 0.80995
    (lead,) = [each for each in told["default_against_others"] if each["measure"] == "hit_rate"]
    assert (lead["run"], lead["verdict"]) == ("mixed/random", "better")
    assert told["failed"] is False


def test_a_failed_request_fails_a_report_without_a_baseline() -> None:
    """There is nothing else to judge by."""
    assert report(make_run("cost", 80, cause="timeout")).failed


def test_a_ledger_is_what_came_between_two_readings() -> None:
    """Parts that did not grow are left out."""
    before = {"total": {"tokens": {"delivered": 10, "prompt": 20}, "lost_tokens": {"tail": 5, "first_time": 5}}}
    after = {"total": {"tokens": {"delivered": 30, "prompt": 50}, "lost_tokens": {"tail": 5, "first_time": 15}}}
    assert ledger_parts(before, after) == {"delivered": 20, "lost: first time": 10}
    assert ledger_parts(None, None) == {}


def test_what_was_scraped_is_drawn_beside_and_counts_where_the_router_is_silent() -> None:
    """Three more plots; requests by replica come from the engines' counters where answers name none."""
    run = make_run("sglang-router", 80)
    for record in run.records:
        record.replica = ""
    scrapes = [
        Scrape(at_s, source, {"running": 1, "waiting": at_s, "kv_usage": 0.5, "answered": at_s * share})
        for at_s in (0.0, 10.0)
        for source, share in (("r0", 15.0), ("r1", 5.0))
    ]
    told = report(dataclasses.replace(run, scrapes=scrapes))
    assert json.loads(told.to_json())["runs"][0]["by_replica"] == {"r0": 150.0, "r1": 50.0}
    assert told.runs[0].measures["spread"].value == 1.5
    assert told.to_html().count("<svg") == 13
    assert "KV blocks in use" in told.to_html()


def test_a_summary_says_where_the_default_is_not_ahead() -> None:
    """Worse, the same or unclear: each measure against each other policy."""
    told = report(make_run("cost", 40), make_run("random", 80)).summary()
    assert "cost is not ahead: worse: mixed/random hit_rate 81.0% -> 41.0%" in told
    assert told.endswith("passed")
    assert "not ahead: better" not in told


def test_so_many_requests_may_fail_as_was_allowed() -> None:
    """One of 200 is half a percent."""
    run = make_run("cost", 80, cause="timeout")
    assert dataclasses.replace(report(run), failed_at_most=0.004).failed
    assert not dataclasses.replace(report(run), failed_at_most=0.005).failed
