"""Sends one kind of traffic to one system, with all that goes along: scrapes, and what is done to it meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import uvloop

from loadtest.driver.client import HttpClient, connections
from loadtest.driver.driver import Driver
from loadtest.driver.holding import Sending
from loadtest.driver.scraping import Scrape, Scraper
from loadtest.workloads.conversations import Session
from loadtest.workloads.schedule import Lane, Stage


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that is done to the system during a run.

    Attributes:
        at_s: Virtual seconds after the start.
        what: Said of it.
        act: Does it, within milliseconds.
    """

    at_s: float
    what: str
    act: Callable[[], None]


@dataclass(slots=True)
class Sent:
    """What came of it.

    Attributes:
        driver: With its records.
        scrapes: Of all sources, in virtual seconds after the start.
        events: (second, what happened).
    """

    driver: Driver
    scrapes: list[Scrape] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)


def send(
    url: str,
    sending: Sending,
    stages: Sequence[Stage],
    lanes: Sequence[Lane[Session]],
    sources: Mapping[str, str] | None = None,
    happenings: Sequence[Happening] = (),
) -> Sent:
    """Send it all.

    Args:
        sources: Metrics pages that are read alongside, by name.
        happenings: Done at their times, if the traffic lasts so long.
    """

    async def happen(sent: Sent, happening: Happening) -> None:
        await sent.driver.wait_until(happening.at_s)
        happening.act()
        sent.events.append((sent.driver.now_s(), happening.what))

    async def main() -> Sent:
        async with connections(sending.timeout_s / sending.time_scale) as session:
            sent = Sent(Driver(HttpClient(session, url), sending, stages))
            running = asyncio.create_task(sent.driver.run(lanes))
            await asyncio.sleep(0)  # it starts its clock
            aside = [asyncio.create_task(happen(sent, each)) for each in happenings]
            await running
            for task in aside:
                task.cancel()
            await asyncio.gather(*aside, return_exceptions=True)
            return sent

    with Scraper(sources or {}) as scraper, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sent = runner.run(main())
    zero_s, scale = sent.driver.zero_s, sending.time_scale
    sent.scrapes = [Scrape((each.at_s - zero_s) * scale, each.source, each.figures) for each in scraper.scrapes]
    return sent


def own_key() -> tuple[str, ...]:
    """Return OPENAI_API_KEY, when it is set."""
    key = os.environ.get("OPENAI_API_KEY")
    return (key,) if key else ()
