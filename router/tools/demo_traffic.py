"""Sends the demo's sessions, and keeps what was said beside what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.driver.client import HttpClient, connections
from loadtest.driver.driver import Driver
from loadtest.driver.holding import Sending
from loadtest.driver.records import Record
from loadtest.workloads.answers import StreamedAnswer
from loadtest.workloads.callers import Callers
from loadtest.workloads.conversations import Session
from loadtest.workloads.schedule import Lane

REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request: its figures, what was sent, and what the engine sent."""

    record: Record
    messages: Sequence[Mapping[str, str]]
    answer: StreamedAnswer


async def send_sessions(
    url: str, model: str, lanes: Sequence[Lane[Session]], on_answered: Callable[[], None] = lambda: None
) -> list[Exchange]:
    """Send everything; return all exchanges, in the order of sending. A failed request ends its session, not the run.

    Args:
        on_answered: Called after each of them.
    """
    exchanges: list[Exchange] = []

    def keep(record: Record, messages: Sequence[Mapping[str, str]], answer: StreamedAnswer) -> None:
        exchanges.append(Exchange(record, messages, answer))
        on_answered()

    async with connections(REQUEST_TIMEOUT_S) as session:
        await Driver(HttpClient(session, url), Sending(Callers((model,))), on_answered=keep).run(lanes)
    return sorted(exchanges, key=lambda exchange: exchange.record.sent_s)
