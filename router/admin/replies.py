"""How admin answers: JSON, and errors in OpenAI's shape, each with a request id."""

from __future__ import annotations

import json
import os
from typing import Any

from aiohttp import web

from router.errors import RequestError, WarmrouteError
from router.telemetry.logs import clean_request_id

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
REQUEST_ID = "x-request-id"


class UnauthorizedError(RequestError):
    """The admin token (`admin.token`) is missing or wrong: send it as `Authorization: Bearer TOKEN`."""

    code = "unauthorized"
    http_status = 401


def request_id_of(request: web.BaseRequest) -> str:
    """Return the client's own id if it is a sane one, else a new one."""
    return clean_request_id(request.headers.get(REQUEST_ID)) or os.urandom(12).hex()


def json_answer(data: Any, status: int = 200) -> web.Response:
    """Return an answer of JSON."""
    text = json.dumps(data, separators=(",", ":")) + "\n"
    return web.Response(text=text, status=status, content_type="application/json", headers=HEADERS)


def refusal(error: WarmrouteError, request_id: str | None = None) -> web.Response:
    """Return the answer for an error of the router's own."""
    headers = {**HEADERS, "content-type": "application/json", REQUEST_ID: request_id or os.urandom(12).hex()}
    if error.http_status == UnauthorizedError.http_status:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return web.Response(body=error.to_json() + b"\n", status=error.http_status, headers=headers)
