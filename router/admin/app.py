"""The admin endpoints, in one table, behind one door.

Health and readiness are open: a kubelet has no token. Everything else needs the token where one is configured. Nothing
here changes the router but the orders to drain (drains.py), and no answer holds a secret.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from router.admin import drains
from router.admin.autoscaling import autoscaling_view
from router.admin.block_list import DEFAULT_BLOCKS, MAX_BLOCKS, block_list
from router.admin.decision_views import decision_view, in_order, order_of
from router.admin.door import Handler, host_check, may_tell, token_check
from router.admin.endpoints import ENDPOINTS
from router.admin.explaining import MAX_EXPLAIN_BYTES, Explaining
from router.admin.live import Live
from router.admin.own_source import OwnSource, add_parts
from router.admin.replies import HEADERS, REQUEST_ID, json_answer, refusal, request_id_of
from router.admin.reuse_views import engine_views, traffic_view
from router.admin.views import masked_config, replica_view, shadow_view, text_views
from router.config import RouterConfig
from router.config_reload import ReloadReport
from router.errors import (
    BodyTooLargeError,
    MalformedRequestError,
    MethodNotAllowedError,
    ModelNotFoundError,
    PathNotFoundError,
    ReplicaNotFoundError,
    RequestError,
    WarmrouteError,
)
from router.fleet.fleet import Fleet
from router.fleet.vouching import Vouching
from router.index.prefix_index import PrefixIndex
from router.placement import Placer
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.telemetry.chain_samples import ChainSamples
from router.telemetry.metrics import CONTENT_TYPE, OPEN_METRICS_TYPE, Metrics
from router.telemetry.recorder import Recorder
from router.texts import ModelTexts

LOG = logging.getLogger("warmroute.admin")
DEFAULT_DECISIONS = 50
_HASH = re.compile(r"[0-9a-fA-F]{16}\Z")
MAX_SHOWN = 64
CLIENT_LEFT = 499
"""nginx's word for it; it is never sent."""


class DecisionNotFoundError(RequestError):
    """No decision with this request id is kept (`admin.decisions` is how many are)."""

    code = "decision_not_found"
    http_status = 404


@dataclass(slots=True)
class AdminView:
    """What the endpoints read.

    Attributes:
        not_ready: Why no traffic should come now; empty when it may.
        clock: The fleet's clock, in seconds.
        complete: Asks a replica about what the reader did not understand, as for a request (prompt, path, body).
        config: In force; replaced as a whole by a reload.
        report: What became of the configuration's file.
        chains: Chains of some of the last requests.
    """

    fleet: Fleet
    index: PrefixIndex
    recorder: Recorder
    metrics: Metrics
    config: RouterConfig
    placer: Placer
    reader: PromptReader
    not_ready: Callable[[], list[str]]
    clock: Callable[[], float]
    vouching: Vouching = field(default_factory=Vouching)
    texts: ModelTexts = field(default_factory=ModelTexts)
    complete: Callable[[Prompt, str, bytes], Awaitable[Prompt]] | None = None
    report: ReloadReport = field(default_factory=ReloadReport)
    drains: drains.DrainControl | None = None
    chains: ChainSamples = field(default_factory=ChainSamples)

    async def completed(self, prompt: Prompt, path: str, body: bytes) -> Prompt:
        """Return the prompt with what a replica tells of it."""
        return prompt if self.complete is None else await self.complete(prompt, path, body)


class Endpoints:
    """The handlers; one method a row of the table."""

    def __init__(self, view: AdminView, *, is_private: bool = False) -> None:
        self._view = view
        self._is_private = is_private
        self._explaining = Explaining(view)
        self._block_lists = asyncio.Semaphore(1)

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer while the process lives."""
        return json_answer({"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        """Say whether traffic may come, and if not, why."""
        reasons = self._view.not_ready()
        return json_answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        """Return all metrics."""
        open_metrics = wants_open_metrics(request)
        content_type = OPEN_METRICS_TYPE if open_metrics else CONTENT_TYPE
        body = self._view.metrics.render(open_metrics=open_metrics)
        return web.Response(body=body, headers={**HEADERS, "content-type": content_type})

    async def counts(self, request: web.Request) -> web.Response:
        """Return what was counted, without what is read at scrape."""
        body = self._view.metrics.render_counted()
        return web.Response(body=body, headers={**HEADERS, "content-type": CONTENT_TYPE})

    async def autoscaling(self, request: web.Request) -> web.Response:
        """Return what an autoscaler asks about a model."""
        view, model = self._view, request.match_info["model"]
        if model not in view.fleet.model_names() and model not in {known.name for known in view.config.models}:
            raise ModelNotFoundError(f"no replica serves {model[:MAX_SHOWN]!r}, and it is not configured")
        return json_answer(autoscaling_view(view.fleet, view.recorder.ledger, model, view.clock()))

    async def replicas(self, request: web.Request) -> web.Response:
        """Return every replica as it is now."""
        view, now_s = self._view, self._view.clock()
        traffic = view.recorder.traffic.replicas
        listed = [
            {
                **replica_view(item, view.index, now_s, view.vouching),
                "traffic": traffic_view(traffic.get(item.replica_id)),
            }
            for item in view.fleet.replicas.values()
        ]
        return json_answer({"replicas": listed, "texts": text_views(view.config, view.texts)})

    async def blocks(self, request: web.Request) -> web.Response:
        """Return which blocks a replica's units hold."""
        may_tell(self._view.config)
        replica = self._view.fleet.replicas.get(request.match_info["replica"])
        if replica is None:
            raise ReplicaNotFoundError("no replica has this id")
        limit = min(limit_of(request, DEFAULT_BLOCKS), MAX_BLOCKS)
        after = request.query.get("after")
        if after is not None and not _HASH.match(after):
            raise MalformedRequestError("`after` must be a hash of 16 hexadecimal digits", param="after")
        async with self._block_lists:
            listed = await block_list(replica, self._view.index, limit, -1 if after is None else int(after, 16))
        return json_answer(listed)

    async def decisions(self, request: web.Request) -> web.Response:
        """Return the last decisions, or those of them that another order puts first."""
        view, limit = self._view, limit_of(request, DEFAULT_DECISIONS)
        order = request.query.get("order", "newest")
        order_of(order)
        decisions = view.recorder.decisions
        latest = decisions.latest(limit if order == "newest" else len(decisions))
        if request.query.get("traces") == "1":
            may_tell(view.config)
            return json_answer({"decisions": [{**item.to_dict(0), "trace": item.trace} for item in latest[:limit]]})
        views = [decision_view(item, view.fleet) for item in latest]
        return json_answer({"decisions": views if order == "newest" else in_order(views, order, limit)})

    async def decision(self, request: web.Request) -> web.Response:
        """Return one decision."""
        decision = self._view.recorder.decisions.get(request.match_info["request_id"])
        if decision is None:
            raise DecisionNotFoundError("no decision with this request id is kept")
        return json_answer(decision_view(decision, self._view.fleet))

    async def ledger(self, request: web.Request) -> web.Response:
        """Return the reuse ledger."""
        recorder, replicas = self._view.recorder, list(self._view.fleet.replicas.values())
        ledger = recorder.ledger.to_dict(sketches=self._is_private)
        return json_answer({**ledger, "replicas": engine_views(recorder.traffic, replicas)})

    async def explain(self, request: web.Request) -> web.Response:
        """Decide without sending."""
        may_tell(self._view.config)
        return json_answer(await self._explaining.explain(request))

    async def shadow(self, request: web.Request) -> web.Response:
        """Return what other weights would have done."""
        return json_answer(shadow_view(self._view.config, self._view.placer.shadow))

    async def drain(self, request: web.Request) -> web.Response:
        """Have a replica take no new requests."""
        return await self._order(request, undo=False)

    async def undrain(self, request: web.Request) -> web.Response:
        """Let a replica take requests again."""
        return await self._order(request, undo=True)

    async def _order(self, request: web.Request, *, undo: bool) -> web.Response:
        if self._view.drains is None:
            raise ReplicaNotFoundError("this router has no replicas")
        has_token = self._view.config.admin.token is not None
        return json_answer(await drains.order(request, self._view.drains, undo=undo, has_token=has_token))

    async def configuration(self, request: web.Request) -> web.Response:
        """Return the configuration without its secrets."""
        return json_answer({**masked_config(self._view.config), "reload": self._view.report.to_dict()})


def wants_open_metrics(request: web.Request) -> bool:
    """Tell whether a scrape takes OpenMetrics, as Prometheus does by itself."""
    return "application/openmetrics-text" in request.headers.get("accept", "")


def limit_of(request: web.Request, default: int) -> int:
    """Return the query's `limit`; raises MalformedRequestError."""
    text = request.query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise MalformedRequestError("`limit` must be a whole number from 0", param="limit")
    return int(text)


def build_admin(view: AdminView, *, is_private: bool = False) -> web.Application:
    """Return the application with every endpoint of the table.

    Args:
        is_private: Only the router's own supervisor can connect: no token is asked for, the ledger has sketches,
            `/counts` has the counters and histograms alone, and `/totals`, `/view` and `/hot` are what it adds up for
            the live view.
    """
    endpoints = Endpoints(view, is_private=is_private)
    door = [] if is_private else [token_check(lambda: view.config), host_check(lambda: view.config)]
    app = web.Application(
        middlewares=[errors, *door], client_max_size=min(MAX_EXPLAIN_BYTES, view.config.limits.body_bytes)
    )
    live = Live(OwnSource(view))
    for row in ENDPOINTS:
        # aiohttp wants an identifier for the part that varies.
        path = row.path.replace("{request-id}", "{request_id}").replace("{model}", "{model:.+}")
        app.router.add_route(row.method, path, live.handlers.get(row.handler) or getattr(endpoints, row.handler))
    if is_private:
        app.router.add_get("/counts", endpoints.counts)
        add_parts(app, OwnSource(view, is_worker=True))
    else:
        live.join(app)
    return app


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in one shape, and everything with a request id."""
    request_id = request_id_of(request)
    answer = await _answer(request, handler, request_id)
    if not answer.prepared:
        answer.headers.setdefault(REQUEST_ID, request_id)
    return answer


async def _answer(request: web.Request, handler: Handler, request_id: str) -> web.StreamResponse:
    try:
        return await handler(request)
    except WarmrouteError as error:
        return refusal(error, request_id)
    except web.HTTPRequestEntityTooLarge:
        return refusal(BodyTooLargeError(f"the body is over {MAX_EXPLAIN_BYTES} bytes"), request_id)
    except web.HTTPMethodNotAllowed as error:
        refused = refusal(MethodNotAllowedError("wrong method for this endpoint"), request_id)
        refused.headers["allow"] = ", ".join(sorted(error.allowed_methods))
        return refused
    except web.HTTPNotFound:
        return refusal(PathNotFoundError("there is no such admin endpoint"), request_id)
    except web.HTTPException:
        raise
    except HttpProcessingError:
        return refusal(MalformedRequestError("the body's framing is malformed"), request_id)
    except ConnectionResetError:
        return web.Response(status=CLIENT_LEFT)  # nobody reads it
    except Exception:
        LOG.exception("an admin endpoint failed", extra={"path": request.path})
        return refusal(WarmrouteError("the router failed to answer; its log says why"), request_id)
