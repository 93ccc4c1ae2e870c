"""Who gets an answer: names that a browser was led to, and what is told where tenants are set."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

BODY = json.dumps({"model": "tiny", "prompt": "word"}).encode()
TENANTS = {
    "tenants": [{"name": "acme", "keys": [hashlib.sha256(b"key").hexdigest()]}],
    "isolation": {"secret": "a secret of sixteen bytes"},
}


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1:8080", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.example:8080", 403)]
)
async def test_another_site_s_name_gets_nothing_without_a_token(admins: Any, host: str, status: int) -> None:
    """A page whose name was pointed at this machine can't read decisions; health stays open."""
    admin = await admins()
    assert (await admin.get("/admin/decisions", host=host))[0] == status
    assert (await admin.get("/healthz", host=host))[0] == 200


async def test_with_a_token_any_name_will_do(admins: Any) -> None:
    """A page does not have the token."""
    admin = await admins(admin={"token": "AT-777-token"})
    headers = {"authorization": "Bearer AT-777-token", "host": "router.example"}
    assert (await admin.get("/admin/decisions", **headers))[0] == 200


@pytest.mark.parametrize(("told", "status"), [(None, 403), (False, 403), (True, 200)])
async def test_with_tenants_what_is_cached_is_told_where_the_operator_says_so(
    admins: Any, told: bool | None, status: int
) -> None:
    """Block lists, traces and explanations of a given body let a prompt be guessed; decisions are what they were."""
    admin = await admins(admin={"listen": "127.0.0.1:0", "tells_cached": told}, **TENANTS)
    admin.announce("r0", 9001)
    answers = [
        await admin.get("/admin/replicas/r0/blocks"),
        await admin.get("/admin/decisions?traces=1"),
        await admin.post("/admin/explain", BODY),
    ]
    assert [answer[0] for answer in answers] == [status] * 3
    if status == 403:
        assert {answer[1]["error"]["code"] for answer in answers} == {"cached_not_told"}
    assert (await admin.get("/admin/decisions"))[0] == 200
    assert (await admin.get("/admin/ledger"))[0] == 200


async def test_without_tenants_it_may_be_off_too(admins: Any) -> None:
    """An operator's choice."""
    admin = await admins(admin={"tells_cached": False})
    admin.announce("r0", 9001)
    assert (await admin.post("/admin/explain", BODY))[0] == 403
