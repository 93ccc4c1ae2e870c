"""The endpoints that drain a replica: the only ones that change anything, so a page in a browser must not reach them.

A browser sends a body of JSON to another site only after asking that site, and nothing here agrees. What a name that
was pointed at this machine could still do, the Host header shows: without a token it must be an address or localhost.
"""

from __future__ import annotations

import ipaddress
import json
import math
from typing import Any, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from router.errors import MalformedRequestError, ReplicaNotFoundError, RequestError
from router.kv.drains import MAX_DRAIN_S

DEFAULT_DRAIN_S = 3600.0


class CrossSiteError(RequestError):
    """The request may come from a page in a browser: send JSON (`content-type: application/json`), to an address."""

    code = "cross_site_request"
    http_status = 403


class DrainControl(Protocol):
    """Who carries orders out; each returns what came of it, None for a replica that is not known."""

    async def drain(self, replica_id: str, for_s: float) -> dict[str, Any] | None: ...

    async def undo(self, replica_id: str) -> dict[str, Any] | None: ...


async def order(request: web.Request, control: DrainControl, *, undo: bool, has_token: bool) -> dict[str, Any]:
    """Carry out one order.

    Raises:
        CrossSiteError, ReplicaNotFoundError, MalformedRequestError: Nothing was done.
    """
    refuse_other_sites(request, has_token=has_token)
    replica_id = request.match_info["replica"]
    if undo:
        outcome = await control.undo(replica_id)
    else:
        outcome = await control.drain(replica_id, _duration_s(await request.read()))
    if outcome is None:
        raise ReplicaNotFoundError("no replica of this name is known")
    return outcome


def refuse_other_sites(request: web.Request, *, has_token: bool) -> None:
    """Raise CrossSiteError for what a browser may have been made to send."""
    if request.content_type != "application/json":
        raise CrossSiteError("send the order with content-type: application/json")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise CrossSiteError("orders are not taken from pages of other sites")
    if not has_token and not is_address(request.host):
        raise CrossSiteError("without admin.token, orders are taken under an IP address or localhost alone")


def is_address(host: str) -> bool:
    """Tell whether a Host header has an IP address or `localhost`: what no other site's name is."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _duration_s(data: bytes) -> float:
    try:
        body = json.loads(data) if data.strip() else {}
    except (ValueError, RecursionError):
        raise MalformedRequestError("the body is no JSON") from None
    for_s: Any = body.get("for_s", DEFAULT_DRAIN_S) if isinstance(body, dict) else None
    if type(for_s) not in (int, float) or not math.isfinite(for_s) or not 1 <= for_s <= MAX_DRAIN_S:
        raise MalformedRequestError(f"`for_s` must be 1 to {MAX_DRAIN_S:g} seconds", param="for_s")
    return float(for_s)
