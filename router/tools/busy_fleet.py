"""The demo's fleet under the demo's traffic, for as long as it is wanted: to look at, and to test pages with."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from loadtest.workloads.rendering import ChatText
from loadtest.workloads.text import TextMaker
from router.tools.demo_plan import DemoPlan
from router.tools.demo_traffic import Exchange, send_sessions
from router.tools.local_fleet import LocalFleet

SESSIONS = 2_000
USERS = 14
"""Of each replica."""


@contextlib.contextmanager
def busy_fleet(replicas: int, router: dict[str, Any] | None = None, users: int = USERS) -> Iterator[LocalFleet]:
    """Start a fleet and its traffic; both end with the context.

    Args:
        router: More of the router's configuration.
        users: Of each replica.
    """
    plan = DemoPlan(replicas=replicas, users=users * replicas, sessions=SESSIONS)
    text = ChatText.load(plan.engine.folder)
    sessions = plan.make_sessions(TextMaker(text.tokenizer))
    options = {"log": {"level": "warning", "access": False}, **(router or {})}
    with LocalFleet(plan.engine, replicas, agents=True, router=options) as fleet:
        loop = asyncio.new_event_loop()
        task = loop.create_task(send_sessions(fleet.router.http, plan.engine.model, plan.lanes(sessions)))
        thread = threading.Thread(target=_run, args=(loop, task), daemon=True)
        thread.start()
        try:
            yield fleet
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[list[Exchange]]) -> None:
    with contextlib.suppress(asyncio.CancelledError), contextlib.closing(loop):
        loop.run_until_complete(task)
