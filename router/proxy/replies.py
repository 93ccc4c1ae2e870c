"""Answers of the router's own."""

from __future__ import annotations

import time

from router.errors import (
    ConnectError,
    InvalidApiKeyError,
    RateLimitedError,
    RequestError,
    UpstreamBrokenError,
    WarmrouteError,
)
from router.placement import Placement
from router.proxy.exchange import Exchange, Headers, Request
from router.proxy.head_pattern import own_lines
from router.proxy.hop_by_hop import joined, safe_name, safe_value
from router.proxy.seams import Records
from router.scheduling.decision import Outcome
from router.telemetry.recorder import RequestFacts

_JSON = (b"content-type", b"application/json")


def reply_json(exchange: Exchange, status: int, body: bytes, extra: Headers | None = None) -> None:
    """Answer with JSON and the request's id."""
    headers = [_JSON, (b"x-request-id", exchange.request.request_id.encode("ascii")), *(extra or ())]
    if exchange.request.account is not None:
        headers += exchange.request.account.headers()
    exchange.reply(status, headers, body)


def reply_error(exchange: Exchange, error: WarmrouteError, extra: Headers | None = None) -> None:
    """Answer with an error of the router's own, in OpenAI's shape."""
    headers = list(extra or [])
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    # The SDK repeats 5xx and 408/409/429 by itself unless told: only what can't be generated twice may be repeated.
    hopeless = isinstance(error, RateLimitedError) and error.retry_after_s is None
    if hopeless or (not isinstance(error, RequestError) and not error.safe_to_retry):
        headers.append((b"x-should-retry", b"false"))
    if isinstance(error, InvalidApiKeyError):
        headers.append((b"www-authenticate", b"Bearer"))
    reply_json(exchange, error.http_status, error.to_json(), headers)


def broken_off() -> UpstreamBrokenError:
    """Return the error of a request that a replica took and did not answer."""
    return UpstreamBrokenError("the replica closed the connection before it answered; it may have begun to")


def not_connected(tried: int) -> ConnectError:
    """Return the error of a request for which so many replicas were tried in vain."""
    return ConnectError(f"no connection to any of {tried} replicas tried; nothing was generated")


def placement_lines(request: Request, placement: Placement) -> bytes:
    """Return the router's own header lines of an engine's answer."""
    replica = safe_name(placement.replica.replica_id)
    if request.account is None and not request.explain:
        return own_lines(request.request_id, replica, placement.decision.matched_tokens)
    lines = b"x-request-id: %b\r\nx-warmroute-replica: %b\r\n" % (request.request_id.encode("ascii"), replica)
    account, decision = request.account, placement.decision
    if account is None or account.tells_cached:
        lines += b"x-warmroute-matched-tokens: %d\r\n" % decision.matched_tokens
        if request.explain:
            lines += b"x-warmroute-explain: %b\r\n" % safe_value(decision.compact())
    if account is not None:
        lines += joined(account.headers())
    return lines


def facts_of(exchange: Exchange, model: str | None = None, *, stream: bool = False) -> RequestFacts:
    """Return what the records keep of a request."""
    request = exchange.request
    tenant = None if request.account is None else request.account.name
    trace_id = None if request.trace is None else request.trace.name
    return RequestFacts(request.request_id, request.method, request.path, model, stream, tenant, trace_id)


def own_outcome(exchange: Exchange, status: int, error: str | None) -> Outcome:
    """Return the outcome of a request that no replica answered."""
    total_s = time.monotonic() - exchange.request.arrived_s
    return Outcome(status, error, None, None, None, None, total_s)


def refuse(records: Records, exchange: Exchange, error: WarmrouteError, extra: Headers | None = None) -> None:
    """Answer a request that is not forwarded, and record it."""
    records.accepted()
    facts, outcome = facts_of(exchange), own_outcome(exchange, error.http_status, error.code)
    reply_error(exchange, error, extra)
    records.finished(None, outcome, facts)
