"""Admin over real sockets: who may ask, what is told, and that nothing secret is."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.admin.endpoints import ENDPOINTS, Endpoint
from router.admin.explaining import MAX_EXPLAIN_BYTES
from router.scheduling.decision import Decision

TOKEN = "AT-777-token"
PROMPT = {"model": "tiny", "prompt": list(range(100)), "max_tokens": 1}


def path_of(row: Endpoint) -> str:
    """One that leads somewhere."""
    return (
        row.path.replace("{request-id}", "q1")
        .replace("{replica}", "r0")
        .replace("{file}", "main.js")
        .replace("{model}", "tiny")
    )


async def text_of(answer: aiohttp.ClientResponse) -> str:
    """All of it; of a stream until it has told of everything once."""
    if answer.content_type != "text/event-stream":
        return await answer.text()
    text = ""
    while "event: prefixes" not in text or not text.endswith("\n\n"):
        text += (await answer.content.readany()).decode()
    return text


def decision(request_id: str) -> Decision:
    return Decision(request_id, 0.0, "tiny", "cost", 10, 1.0, [], {}, "r0/0", 0.0, 0, 0, "only", "exact")


async def test_readiness_tells_its_reasons(admins):
    """503 with every reason while traffic should not come, 200 when it may; alive all the while."""
    admin = await admins()
    admin.reasons = ["redis: not reached yet", "draining"]
    assert await admin.get("/readyz") == (503, {"ready": False, "reasons": admin.reasons})
    assert (await admin.get("/healthz"))[0] == 200
    admin.reasons = []
    assert await admin.get("/readyz") == (200, {"ready": True, "reasons": []})


@pytest.mark.parametrize(
    "authorization",
    [None, TOKEN, "Bearer", "Bearer wrong", "Bearer AT-777-tokem", "Basic " + TOKEN, "Bearer tökén\udcff"],
)
async def test_without_the_right_token_nothing_but_health_is_told(admins, authorization):
    """Every endpoint but /healthz and /readyz is 401 in OpenAI's shape, whatever bytes are sent as a token."""
    admin = await admins(admin={"token": TOKEN})
    url = urlsplit(admin.url)
    for row in ENDPOINTS:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        head = f"{row.method} {path_of(row)} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n"
        if authorization is not None:
            head += f"authorization: {authorization}\r\n"
        writer.write((head + "\r\n").encode("utf-8", "surrogateescape"))
        answer = await reader.read()
        writer.close()
        status = int(answer.split()[1])
        assert status in ((200, 308) if row.is_open else (401,)), row
        if not row.is_open:
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == "unauthorized"
            assert set(error) == {"message", "type", "param", "code"}


async def test_with_the_token_everything_is_told(admins):
    """The right bearer token opens every endpoint of the table; the scheme's case does not matter."""
    admin = await admins(admin={"token": TOKEN})
    admin.decisions.add(decision("q1"))
    admin.announce("r0", 9001)
    for row in ENDPOINTS:
        path = path_of(row)
        body = json.dumps(PROMPT) if row.method == "POST" else None
        headers = {"authorization": f"bearer {TOKEN}", "content-type": "application/json"}
        async with admin.session.request(row.method, admin.url + path, headers=headers, data=body) as answer:
            assert answer.status == 200, row


async def test_no_answer_holds_a_secret(admins):
    """Token, signing secret, Redis password and hash seed are masked wherever they would be shown."""
    admin = await admins(admin={"token": TOKEN})
    admin.decisions.add(decision("q1"))
    admin.announce("r0", 9001)
    for row in ENDPOINTS:
        async with admin.session.request(
            row.method, admin.url + path_of(row), headers={"authorization": f"Bearer {TOKEN}"}, data=b"{"
        ) as answer:
            text = await text_of(answer)
            found = [secret for secret in (TOKEN, "RS-888-of-sixteen", "RP-333", "SEED-999") if secret in text]
            assert found == [], row
    status, config = await admin.get("/admin/config", authorization=f"Bearer {TOKEN}")
    assert status == 200
    assert config["redis"]["url"] == "redis://***@redis.example:6379/0"


async def test_metrics_are_what_prometheus_reads(admins):
    """The page parses, with its content type, and tells of the replica."""
    admin = await admins()
    admin.announce("r0", 9001)
    async with admin.session.get(admin.url + "/metrics") as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    labels = {"replica": "r0", "model": "tiny", "state": "exact"}
    assert [sample.labels for sample in families["warmroute_replica_trust"].samples] == [labels]


async def test_replicas_tell_state_trust_and_blocks(admins):
    """What placement knows of a replica is shown: state with its reason, trust, blocks, in flight."""
    admin = await admins()
    admin.announce("r0", 9001)
    admin.index.store(admin.fleet.unit("r0/0").slot, [1, 2, 3])
    admin.fleet.mark_down("r0", "fails its health probes")
    _, body = await admin.get("/admin/replicas")
    replica = body["replicas"][0]
    unit = replica["units"][0]
    assert (replica["replica"], replica["state"], replica["down_reason"]) == ("r0", "down", "fails its health probes")
    assert (unit["unit"], unit["trust"], unit["blocks"], unit["requests"]) == ("r0/0", "exact", 3, 0)
    assert unit["load"] is None


async def test_decisions_are_listed_newest_first_and_found_by_id(admins):
    """`limit` bounds the list; an id that is not kept is 404 with its own code."""
    admin = await admins()
    for number in range(5):
        admin.decisions.add(decision(f"q{number}"))
    _, body = await admin.get("/admin/decisions?limit=2")
    assert [item["request_id"] for item in body["decisions"]] == ["q4", "q3"]
    assert (await admin.get("/admin/decisions/q2"))[1]["request_id"] == "q2"
    status, body = await admin.get("/admin/decisions/none")
    assert (status, body["error"]["code"]) == (404, "decision_not_found")


@pytest.mark.parametrize("limit", ["-1", "x", "1.5", "9" * 30, "\u0663"])
async def test_a_wrong_limit_is_a_400(admins, limit):
    """Only whole numbers from 0."""
    admin = await admins()
    status, body = await admin.get(f"/admin/decisions?limit={limit}")
    assert (status, body["error"]["param"]) == (400, "limit")


async def test_explain_tells_the_decision_and_reserves_nothing(admins):
    """A body gets the decision it would get; no request is counted anywhere, and no decision is kept."""
    admin = await admins()
    admin.announce("r0", 9001)
    admin.announce("r1", 9002)
    status, body = await admin.post("/admin/explain", PROMPT)
    assert (status, body["prompt_tokens"], len(body["candidates"])) == (200, 100, 2)
    assert sum(unit.in_flight.requests for unit in admin.fleet.units.values()) == 0
    assert len(admin.decisions) == 0


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (json.dumps({"model": "other", "prompt": "x"}).encode(), 404, "model_not_found"),
        (b"{" + b" " * MAX_EXPLAIN_BYTES, 413, "body_too_large"),
    ],
)
async def test_explain_refuses_in_openai_s_shape(admins, body, status, code):
    """An unknown model and a body that is too long are said as clients know it."""
    admin = await admins()
    admin.announce("r0", 9001)
    answered, answer = await admin.post("/admin/explain", body)
    assert (answered, answer["error"]["code"]) == (status, code)


async def test_a_wrong_method_and_an_unknown_path_are_refused(admins):
    """405 names what is allowed; anything that is not in the table is 404."""
    admin = await admins()
    async with admin.session.post(admin.url + "/readyz") as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET")
        assert (await answer.json())["error"]["code"] == "method_not_allowed"
    assert (await admin.get("/admin/nothing"))[0] == 404


async def test_a_failure_of_ours_is_a_500_in_the_same_shape(admins, monkeypatch, caplog):
    """A bug in an endpoint is logged, and answered without its details."""
    admin = await admins()
    monkeypatch.setattr(type(admin.metrics), "render", lambda self, **_: 1 / 0)
    status, body = await admin.get("/metrics")
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "division" not in json.dumps(body)
    assert "ZeroDivisionError" in caplog.text


EXPLAIN = b"POST /admin/explain HTTP/1.1\r\nhost: localhost\r\n"


async def test_a_body_that_is_no_http_is_a_400_and_no_traceback(admins, caplog):
    """It is the client's fault, so an operator is not told of a failure."""
    admin = await admins()
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.runner.addresses[0][1])
    writer.write(EXPLAIN + b"transfer-encoding: chunked\r\n\r\nzz\r\n")
    assert b" 400 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    assert caplog.text == ""


async def test_a_body_that_never_ends_is_a_408(admins):
    """Nothing waits for it for ever, nor for the end of one whose later chunks are malformed."""
    admin = await admins(timeouts={"request_s": 0.2})
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.runner.addresses[0][1])
    writer.write(EXPLAIN + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_a_client_that_leaves_within_its_body_is_no_failure(admins, caplog, eventually):
    """No traceback for it."""
    admin = await admins()
    _, writer = await asyncio.open_connection("127.0.0.1", admin.runner.addresses[0][1])
    writer.write(EXPLAIN + b"content-length: 500\r\n\r\nabc")
    await eventually(lambda: admin.runner.server.requests_count == 1)
    writer.close()
    await eventually(lambda: not admin.runner.server.connections)
    assert caplog.text == ""


class _DataPlane(asyncio.Protocol):
    """Reads a little and hands the connection over, as the data plane does."""

    def __init__(self, take_over):
        self._take_over = take_over
        self._read = b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._read += data
        if len(self._read) >= 10:
            self._take_over(self._transport, self._read)


async def test_a_connection_is_taken_over_with_what_was_read(admins):
    """Bytes already read are not lost, the rest follows, and the connection is kept alive for the next request."""
    admin = await admins()
    admin.announce("r0", 9001)
    take_over = admin.runner.take_over
    server = await asyncio.get_running_loop().create_server(lambda: _DataPlane(take_over), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    body = json.dumps({"model": "none", "prompt": "x" * 100_000}).encode()
    request = b"POST /admin/explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    for start in range(0, len(request), 7_000):
        writer.write(request[start : start + 7_000])
        await writer.drain()
        await asyncio.sleep(0)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    assert json.loads(await reader.readexactly(length))["error"]["code"] == "model_not_found"
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    server.close()


@pytest.mark.parametrize("first_chunk", [b"zz\r\nno\r\n", b"-1\r\n", b"5;\nhello\r\n"])
async def test_a_malformed_body_is_refused_in_the_shape_of_every_error(admins, first_chunk):
    """JSON with a code and a request id, also where aiohttp itself answers."""
    admin = await admins()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(admin.url.rpartition(":")[2]))
    head = b"POST /admin/explain HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + first_chunk)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    writer.close()
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert b"application/json" in answer.lower()
    assert b"x-request-id: " in answer.lower()


async def test_every_answer_has_a_request_id(admins):
    """The client's own if it is a sane one."""
    admin = await admins()
    async with admin.session.get(f"{admin.url}/healthz", headers={"x-request-id": "mine"}) as answer:
        assert answer.headers["x-request-id"] == "mine"
    async with admin.session.get(f"{admin.url}/nowhere", headers={"x-request-id": "not sane!"}) as answer:
        assert len(answer.headers["x-request-id"]) == 24
