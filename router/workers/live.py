"""What the live view shows of a router of several workers: all of them asked, and their figures added up."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from router.admin.overview import merged_views
from router.admin.own_source import router_view
from router.admin.prefixes import merged_prefixes, under_pseudonyms
from router.errors import NoReplicaError
from router.telemetry.instruments import Instruments
from router.telemetry.reuse_ledger import ReuseLedger
from router.telemetry.table import METRICS
from router.telemetry.totals import counted, sum_of, totals_of
from router.workers.worker import Worker

if TYPE_CHECKING:
    from router.workers.admin import CrewView

_NOTHING = totals_of(Instruments(METRICS), ReuseLedger())
Ask = Callable[[str], Awaitable[list[tuple[Worker, int, bytes]]]]


class CrewSource:
    """Asks the workers.

    Args:
        ask: GETs a path of every worker that serves.
        not_ready: Why no traffic should come now.
    """

    def __init__(self, view: CrewView, ask: Ask, not_ready: Callable[[], Awaitable[list[str]]]) -> None:
        self._view = view
        self._ask = ask
        self._not_ready = not_ready
        self._former = _NOTHING
        self._last: dict[int, dict[str, Any]] = {}

    def token(self) -> str | None:
        """The admin token in force."""
        return self._view.config.admin.token

    def died(self, worker: Worker) -> None:
        """Keep what a worker had counted when it was last asked, so that no sum falls."""
        self._former = sum_of(self._former, counted(self._last.pop(worker.number, _NOTHING)))

    async def totals(self) -> dict[str, Any]:
        """Return what all counted."""
        for worker, found in await self._answers("/totals"):
            self._last[worker.number] = found
        return self._sum()

    async def view(self) -> dict[str, Any]:
        """Return the present state."""
        views = []
        for worker, found in await self._answers("/view"):
            self._last[worker.number] = found["totals"]
            for rows in found["decisions"].values():
                for row in rows:
                    row["worker"] = worker.number
            views.append(found)
        if not views:
            raise NoReplicaError("no worker serves now", retry_after_s=1)
        report = self._view.report.to_dict()
        return router_view(await self._not_ready(), report, self._sum(), merged_views(views), len(views))

    async def prefixes(self, limit: int) -> dict[str, Any]:
        """Return the hottest prefixes."""
        answers = [found for _, found in await self._answers(f"/hot?limit={limit}")]
        found = merged_prefixes(answers, limit)
        return under_pseudonyms(found) if self._view.config.tenants is not None else found

    async def _answers(self, path: str) -> list[tuple[Worker, dict[str, Any]]]:
        return [(worker, json.loads(text)) for worker, status, text in await self._ask(path) if status == 200]

    def _sum(self) -> dict[str, Any]:
        total = self._former
        for each in self._last.values():
            total = sum_of(total, each)
        return total
