"""What scrapes of engines and router add up to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from loadtest.driver.scraping import Scrape, grown

MEANS = ("kv_usage",)
SUMS = ("running", "waiting", "in_flight", "queued")


def scraped(scrapes: Sequence[Scrape]) -> dict[str, float]:
    """Return sums over all sources: what counters grew by, the engines' own hit rate, and the most that waited."""
    told = {
        name: sum(values.values())
        for name in ("query_tokens", "hit_tokens", "answered", "cpu_s")
        if (values := grown(scrapes, name))
    }
    if told.get("query_tokens"):
        told["engines_hit_rate"] = told.get("hit_tokens", 0.0) / told["query_tokens"]
    for figure in ("waiting", "kv_usage"):
        if points := [point[figure] for point in scraped_line(scrapes) if figure in point]:
            told[f"{figure}_max"] = max(points)
    return told


def scraped_line(scrapes: Sequence[Scrape]) -> list[dict[str, Any]]:
    """Return a point for each round of scrapes: requests running, waiting, in flight and queued of all sources
    together, and the mean share of KV blocks in use."""
    rounds: list[list[Scrape]] = []
    seen: set[str] = set()
    for scrape in scrapes:
        if not rounds or scrape.source in seen:
            rounds.append([])
            seen = set()
        rounds[-1].append(scrape)
        seen.add(scrape.source)
    line = []
    for each in rounds:
        values: dict[str, list[float]] = defaultdict(list)
        for scrape in each:
            for name, value in scrape.figures.items():
                values[name].append(value)
        point: dict[str, Any] = {"at_s": round(each[0].at_s, 3)}
        point |= {name: sum(values[name]) for name in SUMS if values[name]}
        line.append(point | {name: sum(values[name]) / len(values[name]) for name in MEANS if values[name]})
    return line
