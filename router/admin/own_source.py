"""What the live view shows of a router that is one process, or of one worker."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from aiohttp import web

from router.admin.overview import fleet_view
from router.admin.prefixes import prefix_views, under_pseudonyms
from router.admin.replies import json_answer
from router.admin.warnings import joined, router_warnings
from router.telemetry.totals import totals_of

if TYPE_CHECKING:
    from router.admin.app import AdminView


class OwnSource:
    """Reads the process' own state.

    Args:
        is_worker: Its supervisor asks: it adds what it alone knows, and decides under which names prefixes are told.
    """

    def __init__(self, view: AdminView, *, is_worker: bool = False) -> None:
        self._view = view
        self._is_worker = is_worker

    def token(self) -> str | None:
        """The admin token in force."""
        return self._view.config.admin.token

    async def totals(self) -> dict[str, Any]:
        """Return what was counted."""
        return totals_of(self._view.metrics.instruments, self._view.recorder.ledger)

    async def view(self) -> dict[str, Any]:
        """Return the present state."""
        view = self._view
        seen = fleet_view(view.fleet, view.index, view.vouching, view.recorder.decisions, view.clock(), time.time())
        totals = await self.totals()
        if self._is_worker:
            return {**seen, "totals": totals}
        reasons = view.not_ready()
        return router_view(reasons, view.report.to_dict(), totals, seen)

    async def prefixes(self, limit: int) -> dict[str, Any]:
        """Return the hottest prefixes."""
        view = self._view
        found = await prefix_views(view.fleet, view.index, view.chains.latest(), limit)
        return under_pseudonyms(found) if view.config.tenants is not None and not self._is_worker else found


def router_view(
    reasons: list[str], reload: dict[str, Any], totals: dict[str, Any], seen: dict[str, Any], workers: int = 1
) -> dict[str, Any]:
    """Return the overview of a router: what its process knows, and what was seen of the fleet."""
    warnings = joined([*router_warnings(reasons, reload, totals["queue"]), *seen["warnings"]])
    return {
        "version": version("warmroute"),
        "workers": workers,
        "ready": not reasons,
        "reasons": reasons,
        "reload": reload,
        **seen,
        "totals": totals,
        "warnings": warnings,
    }


def add_parts(app: web.Application, source: OwnSource) -> None:
    """Let the supervisor ask a worker for its part of each figure."""

    async def totals(_: web.Request) -> web.Response:
        return json_answer(await source.totals())

    async def view(_: web.Request) -> web.Response:
        return json_answer(await source.view())

    async def hot(request: web.Request) -> web.Response:
        return json_answer(await source.prefixes(int(request.query["limit"])))

    app.router.add_get("/totals", totals)
    app.router.add_get("/view", view)
    app.router.add_get("/hot", hot)
