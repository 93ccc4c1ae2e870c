"""The supervisor's admin: every endpoint of a router, answered from what all workers say.

Metrics are added up, a decision is found whichever worker made it, what is in flight at a replica is the sum. What all
workers know alike is asked of one; orders go to all of them, and to those that start later.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client.metrics_core import Metric

from router.admin.app import DEFAULT_DECISIONS, DecisionNotFoundError, errors, limit_of, wants_open_metrics
from router.admin.decision_views import in_order, order_of
from router.admin.door import host_check, token_check
from router.admin.endpoints import ENDPOINTS
from router.admin.live import Live
from router.admin.replies import HEADERS, REQUEST_ID, json_answer
from router.admin.views import masked_config
from router.config import RouterConfig
from router.config_reload import ReloadReport
from router.errors import NoReplicaError
from router.telemetry.metrics import CONTENT_TYPE, OPEN_METRICS_TYPE, Metrics
from router.workers import merging, merging_reuse
from router.workers.crew import Crew
from router.workers.live import CrewSource
from router.workers.worker import Worker, socket_path

LOG = logging.getLogger("warmroute.workers")
COUNTS_EVERY_S = 2.0
"""How much of a worker's counts is lost with it, at most."""
ASK_S = 10.0
MAX_BODY_BYTES = 8 * 2**20
_PASSED_ON = (
    "content-type",
    "cache-control",
    "x-content-type-options",
    "content-security-policy",
    "retry-after",
    "allow",
)


@dataclass(slots=True)
class CrewView:
    """What the endpoints read.

    Attributes:
        config: In force; replaced as a whole by a reload.
        metrics: The supervisor's own.
    """

    crew: Crew
    config: RouterConfig
    metrics: Metrics
    draining: bool = False
    report: ReloadReport = field(default_factory=ReloadReport)


class CrewAdmin:
    """Asks the workers; lives as long as the supervisor serves."""

    def __init__(self, view: CrewView) -> None:
        self._view = view
        self._crew = view.crew
        self._sessions = {
            worker.number: aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path=str(socket_path(self._crew.folder, worker))),
                timeout=aiohttp.ClientTimeout(total=ASK_S),
                auto_decompress=False,
            )
            for worker in self._crew.workers
        }
        self._counts: dict[int, list[Metric]] = {}
        self._former: list[Metric] = []
        self._orders: dict[str, tuple[web.Request, bytes, float]] = {}
        self._source = CrewSource(view, self._all, self._not_ready)
        self._live = Live(self._source)

    def application(self) -> web.Application:
        """Return the application, with the endpoints of a router."""
        app = web.Application(
            middlewares=[
                errors,
                token_check(lambda: self._view.config),
                host_check(lambda: self._view.config),
            ],
            client_max_size=MAX_BODY_BYTES,
        )
        together: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "healthz": self.healthz,
            "readyz": self.readyz,
            "metrics": self.metrics,
            "replicas": self.replicas,
            "shadow": self.shadow,
            "ledger": self.ledger,
            "decisions": self.decisions,
            "decision": self.decision,
            "configuration": self.configuration,
            "drain": self.order,
            "undrain": self.order,
            **self._live.handlers,
        }
        for row in ENDPOINTS:
            path = row.path.replace("{request-id}", "{request_id}").replace("{model}", "{model:.+}")
            app.router.add_route(row.method, path, together.get(row.handler, self.one))
        self._live.join(app)
        return app

    async def close(self) -> None:
        """Ask no more."""
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer while the supervisor lives."""
        return json_answer({"status": "alive", "workers": len(self._crew.serving)})

    async def readyz(self, request: web.Request) -> web.Response:
        """Ready when a worker serves and each that serves is ready: any of them may get the next connection."""
        reasons = await self._not_ready()
        return json_answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def _not_ready(self) -> list[str]:
        reasons = ["draining"] if self._view.draining else []
        if not self._crew.serving:
            reasons.append(f"workers: none of {len(self._crew.workers)} serves")
        for worker, _, answer in await self._all("/readyz"):
            found = json.loads(answer).get("reasons", [])
            reasons += [f"worker {worker.number}: {reason}" for reason in found if reason != "draining"]
        return reasons

    async def metrics(self, request: web.Request) -> web.Response:
        """Add up what all count."""
        open_metrics = wants_open_metrics(request)
        answers = await self._all("/metrics", {"accept": OPEN_METRICS_TYPE} if open_metrics else None)
        texts = [(worker.number, text) for worker, _, text in answers]
        body = await asyncio.to_thread(self._merge, texts, open_metrics=open_metrics)
        content_type = OPEN_METRICS_TYPE if open_metrics else CONTENT_TYPE
        return web.Response(body=body, headers={**HEADERS, "content-type": content_type})

    async def replicas(self, request: web.Request) -> web.Response:
        """Return what one worker knows of each replica, with what all have in flight there."""
        found = [json.loads(answer) for _, status, answer in await self._all("/admin/replicas") if status == 200]
        if not found:
            raise NoReplicaError("no worker serves now", retry_after_s=1)
        first, *others = found
        for other in others:
            _add_units(first, other)
        return json_answer(first)

    async def ledger(self, request: web.Request) -> web.Response:
        """Return the reuse ledger of all workers' requests."""
        found = [json.loads(answer) for _, status, answer in await self._all("/admin/ledger") if status == 200]
        if not found:
            raise NoReplicaError("no worker serves now", retry_after_s=1)
        return json_answer(await asyncio.to_thread(merging_reuse.ledgers, found))

    async def shadow(self, request: web.Request) -> web.Response:
        """Return what other weights would have done in all workers."""
        found = [json.loads(answer) for _, status, answer in await self._all("/admin/shadow") if status == 200]
        if not found:
            raise NoReplicaError("no worker serves now", retry_after_s=1)
        return json_answer(merging.shadows(found))

    async def decisions(self, request: web.Request) -> web.Response:
        """Return the last decisions of all."""
        limit = limit_of(request, DEFAULT_DECISIONS)
        found: list[dict[str, Any]] = []
        for worker, status, answer in await self._all(str(request.rel_url)):
            if status == 200:
                found += [{**item, "worker": worker.number} for item in json.loads(answer)["decisions"]]
        order = request.query.get("order", "newest")
        order_of(order)
        if request.query.get("traces") == "1":
            order = "newest"  # such views have no outcome in words
        return json_answer({"decisions": in_order(found, order, limit)})

    async def decision(self, request: web.Request) -> web.Response:
        """Return the newest decision of this id that any worker made."""
        found = [
            {**json.loads(answer), "worker": worker.number}
            for worker, status, answer in await self._all(str(request.rel_url))
            if status == 200
        ]
        if not found:
            raise DecisionNotFoundError("no decision with this request id is kept")
        return json_answer(max(found, key=lambda item: item["at"]))

    async def configuration(self, request: web.Request) -> web.Response:
        """Return the configuration without its secrets."""
        return json_answer({**masked_config(self._view.config), "reload": self._view.report.to_dict()})

    async def one(self, request: web.Request) -> web.Response:
        """Pass a request on to one worker: all know this alike."""
        body = await request.read()
        for worker in self._crew.serving:
            answer = await self._ask(worker, request.method, str(request.rel_url), body, _headers(request))
            if answer is not None:
                return answer
        raise NoReplicaError("no worker serves now", retry_after_s=1)

    async def order(self, request: web.Request) -> web.Response:
        """Have every worker do something, and those that start later."""
        body = await request.read()
        answer = await self._order(request, body, self._crew.serving)
        if answer is None:
            raise NoReplicaError("no worker serves now", retry_after_s=1)
        if answer.status == 200:
            replica = request.match_info["replica"]
            self._orders.pop(replica, None)
            if not request.path.endswith("/undo"):
                self._orders[replica] = (request, body, time.monotonic())
        return answer

    async def repeat_orders(self, worker: Worker) -> None:
        """Tell a worker that is new what holds."""
        for replica, (request, body, at_s) in list(self._orders.items()):
            wanted = json.loads(body) if body.strip() else {}
            left_s = wanted.get("for_s", 3600.0) - (time.monotonic() - at_s)
            if left_s < 1:
                del self._orders[replica]
                continue
            await self._order(request, json.dumps({**wanted, "for_s": left_s}).encode(), [worker])

    async def keep_counts(self) -> None:
        """Ask each worker for its counts now and then, so that they outlive it; until cancelled."""
        while True:
            await asyncio.sleep(COUNTS_EVERY_S)
            for worker, status, text in await self._all("/counts"):
                if status == 200:
                    self._counts[worker.number] = await asyncio.to_thread(merging.parse, text.decode())

    def died(self, worker: Worker) -> None:
        """Keep what a worker had counted."""
        self._source.died(worker)
        self._former = merging.added(self._former, self._counts.pop(worker.number, []))

    def _merge(self, texts: list[tuple[int, bytes]], *, open_metrics: bool) -> bytes:
        """In a thread."""
        parsed = [(number, merging.parse(text.decode(), open_metrics=open_metrics)) for number, text in texts]
        for number, families in parsed:
            self._counts[number] = merging.only_counts(families)
        asked = {number for number, _ in parsed}
        silent = [counts for number, counts in list(self._counts.items()) if number not in asked]
        self._view.metrics.workers_are(self._crew.states())
        own = self._view.metrics.counted()
        whole = merging.merged(own, [*(each for _, each in parsed), self._former, *silent])
        return merging.exposed(whole, open_metrics=open_metrics)

    async def _order(self, request: web.Request, body: bytes, workers: list[Worker]) -> web.Response | None:
        asked = [self._ask(each, request.method, str(request.rel_url), body, _headers(request)) for each in workers]
        answers = [answer for answer in await asyncio.gather(*asked) if answer is not None]
        return max(answers, key=lambda answer: answer.status) if answers else None

    async def _all(self, path: str, headers: dict[str, str] | None = None) -> list[tuple[Worker, int, bytes]]:
        """Ask every worker that serves; those that do not answer are left out."""
        workers = self._crew.serving
        answers = await asyncio.gather(*(self._ask(worker, "GET", path, b"", headers) for worker in workers))
        return [
            (worker, answer.status, bytes(answer.body or b""))  # type: ignore[arg-type]  # bytes, as made below
            for worker, answer in zip(workers, answers, strict=True)
            if answer is not None
        ]

    async def _ask(
        self, worker: Worker, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> web.Response | None:
        try:
            async with self._sessions[worker.number].request(
                method, f"http://worker{path}", data=body or None, headers=headers, allow_redirects=False
            ) as answer:
                kept = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
                return web.Response(status=answer.status, body=await answer.read(), headers=kept)
        except (aiohttp.ClientError, OSError, TimeoutError):
            LOG.warning("worker %d does not answer its supervisor", worker.number)
            return None


def _headers(request: web.Request) -> dict[str, str]:
    """Return what of a request's headers a worker may need. Its supervisor has asked for the token already."""
    names = ("host", "content-type", "origin", "accept", REQUEST_ID)
    return {name: request.headers[name] for name in names if name in request.headers}


def _add_units(whole: dict[str, Any], other: dict[str, Any]) -> None:
    """Add what another worker has in flight at each unit, and how often it ejected each replica."""
    theirs = {item["replica"]: item for item in other["replicas"]}
    for replica in whole["replicas"]:
        found = theirs.get(replica["replica"])
        if found is None:
            continue
        replica["ejections"] += found["ejections"]
        replica["traffic"] = merging_reuse.traffic(replica["traffic"], found["traffic"])
        units = {unit["unit"]: unit for unit in found["units"]}
        for unit in replica["units"]:
            if unit["unit"] in units:
                unit["requests"] += units[unit["unit"]]["requests"]
                unit["backlog_tokens"] = round(unit["backlog_tokens"] + units[unit["unit"]]["backlog_tokens"], 1)
