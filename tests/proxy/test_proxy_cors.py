"""Pages in browsers: preflights need no key, other origins get nothing, errors can be read."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

ORIGIN = "https://app.example"
ASKS = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, x-mine"]
KEY = "sk-of-a-tenant"
TENANTS = [{"name": "one", "keys": [hashlib.sha256(KEY.encode()).hexdigest()], "isolated": False}]
PATH = "/v1/chat/completions"


async def test_a_preflight_of_a_named_origin_is_granted_without_a_key(harness: Any, engine: Any, wire: Any) -> None:
    """No engine hears of it."""
    one = await engine()
    item = await harness(one, tenants=TENANTS, cors={"origins": [ORIGIN]})
    answer = await item.ask(wire.get(PATH, [f"Origin: {ORIGIN}", *ASKS], method="OPTIONS"), bodiless=True)
    assert answer.status == 204
    assert answer.one("access-control-allow-origin") == ORIGIN
    assert "POST" in answer.one("access-control-allow-methods")
    assert answer.one("access-control-allow-headers") == "authorization, content-type, x-request-id"
    assert answer.one("access-control-max-age") == "600"
    assert answer.one("vary").startswith("Origin")
    assert answer.all("x-request-id")
    assert not one.asked
    item.assert_accounted()


@pytest.mark.parametrize("origin", ["https://other.example", "https://app.example.evil", "http://app.example", "null"])
async def test_another_origin_is_granted_nothing(harness: Any, engine: Any, wire: Any, origin: str) -> None:
    """Neither in a preflight nor in an answer."""
    item = await harness(await engine(), cors={"origins": [ORIGIN]})
    preflight = await item.ask(wire.get(PATH, [f"Origin: {origin}", *ASKS], method="OPTIONS"), bodiless=True)
    answer = await item.ask(wire.post(wire.chat_body(), headers=[f"Origin: {origin}"]))
    for each in (preflight, answer):
        assert not [name for name, _ in each.headers if name.lower().startswith("access-control-")]


async def test_answers_and_errors_can_be_read_by_the_page(harness: Any, engine: Any, wire: Any) -> None:
    """Once, whatever the engine says of it; the key is still asked for."""

    async def behave(asked: Any, writer: Any) -> None:
        writer.write(wire.ok(head=b"Access-Control-Allow-Origin: *\r\nX-Mine: 1\r\n"))

    item = await harness(await engine(behave), tenants=TENANTS, cors={"origins": [ORIGIN]})
    sent = wire.chat_body()
    refused = await item.ask(wire.post(sent, headers=[f"Origin: {ORIGIN}"]))
    served = await item.ask(wire.post(sent, headers=[f"Origin: {ORIGIN}", f"Authorization: Bearer {KEY}"]))
    assert (refused.status, served.status) == (401, 200)
    for each in (refused, served):
        assert each.one("access-control-allow-origin") == ORIGIN
        assert each.one("vary") == "Origin"
    assert served.one("x-mine") == "1"


async def test_without_origins_the_engines_answer_for_themselves(harness: Any, engine: Any, wire: Any) -> None:
    """The default: a preflight goes to an engine, and its answer passes."""

    async def behave(asked: Any, writer: Any) -> None:
        writer.write(wire.ok(head=b"Access-Control-Allow-Origin: *\r\n"))

    one = await engine(behave)
    item = await harness(one)
    answer = await item.ask(wire.get(PATH, [f"Origin: {ORIGIN}", *ASKS], method="OPTIONS"))
    assert (answer.status, answer.one("access-control-allow-origin")) == (200, "*")
    assert one.asked[0].line.startswith("OPTIONS ")


async def test_every_origin_can_be_allowed_and_any_header(harness: Any, engine: Any, wire: Any) -> None:
    """`*` for both: what a preflight asks for is granted."""
    item = await harness(await engine(), cors={"origins": ["*"], "headers": ["*"]})
    answer = await item.ask(wire.get(PATH, [f"Origin: {ORIGIN}", *ASKS], method="OPTIONS"), bodiless=True)
    assert answer.one("access-control-allow-origin") == "*"
    assert answer.one("access-control-allow-headers") == "authorization, x-mine"


@pytest.mark.parametrize(
    "cors",
    [{"origins": ["app.example"]}, {"origins": ["https://app.example/"]}, {"origins": ["*"], "credentials": True}],
)
def test_what_can_not_be_an_origin_is_a_problem(cors: dict[str, Any]) -> None:
    """At start."""
    from router.config_file import parse
    from router.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="cors"):
        parse({"models": [{"name": "m"}], "replicas": [{"url": "http://h:1"}], "cors": cors}, {})
