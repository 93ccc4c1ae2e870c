"""Orders to drain over HTTP: what they do is the feeds' (tests/feeds/test_drains.py), who may give them is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router.kv.drains import MAX_DRAIN_S

DRAIN = "/admin/replicas/r0/drain"
JSON = {"content-type": "application/json"}


async def send(admin: Any, path: str, data: bytes = b"", headers: dict[str, str] = JSON) -> tuple[int, Any]:
    async with admin.session.post(admin.url + path, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_an_order_and_its_end(admins: Callable[..., Any]) -> None:
    """With a time, without one (an hour), and undone."""
    admin = await admins()
    assert await send(admin, DRAIN, b'{"for_s": 60}') == (200, {"replica": "r0"})
    assert (await send(admin, DRAIN))[0] == 200
    assert (await send(admin, DRAIN + "/undo"))[0] == 200
    assert admin.orders.given == [("r0", 60.0), ("r0", 3600.0), ("r0",)]


async def test_a_replica_that_is_not_known_is_404(admins: Callable[..., Any]) -> None:
    """With a code of its own."""
    admin = await admins()
    for path in ("/admin/replicas/r9/drain", "/admin/replicas/r9/drain/undo"):
        status, body = await send(admin, path)
        assert (status, body["error"]["code"]) == (404, "replica_not_found")


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"for_s": "x"}', b'{"for_s": 0}', b'{"for_s": true}', b'{"for_s": 1e9}', b'{"for_s": NaN}']
)
async def test_a_body_that_makes_no_sense_is_400(admins: Callable[..., Any], data: bytes) -> None:
    """And nothing is done."""
    admin = await admins()
    status, body = await send(admin, DRAIN, data)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert admin.orders.given == []
    assert MAX_DRAIN_S < 1e9


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {},
        {**JSON, "origin": "http://evil.example"},
        {**JSON, "origin": "null"},
        {**JSON, "host": "evil.example:8080"},
    ],
)
async def test_what_a_page_in_a_browser_can_send_is_403(admins: Callable[..., Any], headers: dict[str, str]) -> None:
    """Forms and simple requests of other sites, and names that were pointed at this machine; never by GET."""
    admin = await admins()
    for path in (DRAIN, DRAIN + "/undo"):
        async with admin.session.post(
            admin.url + path, data=b"", headers=headers, skip_auto_headers=["content-type"]
        ) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (403, "cross_site_request")
        assert (await admin.get(path))[0] == 405
    assert admin.orders.given == []


async def test_the_token_is_needed(admins: Callable[..., Any]) -> None:
    """With admin.token: 401 without it, and with it under any name."""
    admin = await admins(admin={"token": "AT-777-token-of-sixteen"})
    assert (await send(admin, DRAIN))[0] == 401
    assert admin.orders.given == []
    named = {**JSON, "authorization": "Bearer AT-777-token-of-sixteen", "host": "router.example"}
    assert (await send(admin, DRAIN, headers=named))[0] == 200
