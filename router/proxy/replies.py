"""Answers of the router's own."""

from __future__ import annotations

import time

from router.errors import RequestError, WarmrouteError
from router.proxy.exchange import Exchange, Headers
from router.proxy.seams import Records
from router.scheduling.decision import Outcome
from router.telemetry.recorder import RequestFacts

_JSON = (b"content-type", b"application/json")


def reply_json(exchange: Exchange, status: int, body: bytes, extra: Headers | None = None) -> None:
    """Answer with JSON and the request's id."""
    headers = [_JSON, (b"x-request-id", exchange.request.request_id.encode("ascii"))]
    exchange.reply(status, headers + (extra or []), body)


def reply_error(exchange: Exchange, error: WarmrouteError, extra: Headers | None = None) -> None:
    """Answer with an error of the router's own, in OpenAI's shape."""
    headers = list(extra or [])
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    # The SDK repeats 5xx and 408/409/429 by itself unless told: only what can't be generated twice may be repeated.
    if not isinstance(error, RequestError) and not error.safe_to_retry:
        headers.append((b"x-should-retry", b"false"))
    reply_json(exchange, error.http_status, error.to_json(), headers)


def facts_of(exchange: Exchange, model: str | None = None, *, stream: bool = False) -> RequestFacts:
    """Return what the records keep of a request."""
    request = exchange.request
    return RequestFacts(request.request_id, request.method, request.path, model, stream)


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
