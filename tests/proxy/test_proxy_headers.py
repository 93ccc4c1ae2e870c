"""Which headers cross (PRX-06), and that an engine's own answers pass as they are (PRX-04)."""

from __future__ import annotations

import json

import pytest


async def test_answer_headers_keep_repeats_and_lose_hops(harness, engine, wire) -> None:
    """Repeated headers arrive in order and spelling; what is for one connection does not; exactly one framing."""

    async def behave(asked, writer) -> None:
        writer.write(
            b"HTTP/1.1 200 Fine\r\nSet-Cookie: a=1\r\nContent-Length: 2\r\nConnection: X-Foo, keep-alive\r\n"
            b"X-Foo: 1\r\n"
            b"Keep-Alive: timeout=5\r\nsEt-cookie: b=2\r\nLink: <1>\r\nLink: <2>\r\nServer-Timing: x\r\n"
            b"x-request-id: engines-own\r\nTrailer: X\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nTE: x\r\n"
            b"X-Warmroute-Replica: fake\r\nX-Empty:\r\n\r\nok"
        )

    item = await harness(await engine(behave))
    answer = await item.ask(wire.post(wire.chat_body(), headers=["x-request-id: mine"]))
    assert answer.headers == [
        ("Set-Cookie", "a=1"),
        ("Content-Length", "2"),
        ("sEt-cookie", "b=2"),
        ("Link", "<1>"),
        ("Link", "<2>"),
        ("Server-Timing", "x"),
        ("X-Empty", ""),
        ("x-request-id", "mine"),
        ("x-warmroute-replica", "r0"),
        ("x-warmroute-matched-tokens", "0"),
    ]
    assert answer.body == b"ok"


async def test_request_headers_keep_repeats_and_lose_hops(harness, engine, wire) -> None:
    """The engine sees the client's end-to-end headers in order, its own Host, one length, no rank of the client's."""
    one = await engine()
    item = await harness(one)
    sent = [
        "X-Forwarded-For: 1.1.1.1",
        "Connection: close, X-Drop",
        "X-Drop: 1",
        "TE: trailers",
        "Proxy-Authorization: Basic eA==",
        "Cookie: a=1",
        "X-Forwarded-For: 2.2.2.2",
        "cookie: b=2",
        "X-data-parallel-rank: 3",
        "X-Warmroute-Explain: 1",
        "Authorization: Bearer CK-111",
    ]
    body = wire.chat_body()
    answer = await item.ask(wire.post(body, headers=sent))
    assert one.asked[0].headers == [
        ("host", f"127.0.0.1:{one.port}"),
        ("X-Forwarded-For", "1.1.1.1"),
        ("Cookie", "a=1"),
        ("X-Forwarded-For", "2.2.2.2"),
        ("cookie", "b=2"),
        ("Authorization", "Bearer CK-111"),
        ("x-request-id", answer.one("x-request-id")),
        ("content-length", str(len(body))),
    ]
    assert answer.one("connection") == "close"


async def test_the_chosen_rank_is_set_where_there_are_several(harness, engine, wire) -> None:
    """A replica with two ranks is told which one was chosen; the client's own wish is not asked."""
    one = await engine()
    item = await harness(placement={"policy": "round-robin"})
    item.announce(one, "r0", ranks=2)
    for _ in range(2):
        await item.ask(wire.post(wire.chat_body(), headers=["X-Data-Parallel-Rank: 7"]))
    assert sorted(asked.all("x-data-parallel-rank") for asked in one.asked) == [["0"], ["1"]]


async def test_explain_is_told_when_asked(harness, engine, wire) -> None:
    """With x-warmroute-explain: 1 the decision comes in a header, as JSON of at most 4 KB; else it does not."""
    item = await harness(await engine())
    assert (await item.ask(wire.post(wire.chat_body()))).all("x-warmroute-explain") == []
    answer = await item.ask(wire.post(wire.chat_body(), headers=["x-warmroute-explain: 1"]))
    explained = answer.one("x-warmroute-explain")
    assert json.loads(explained)["winner"] == "r0/0"
    assert len(explained) <= 4_096


@pytest.mark.parametrize(
    ("method", "head", "status"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", 200),
        ("HEAD", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 200),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("POST", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n", 304),
        ("POST", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200),
    ],
)
async def test_answers_without_a_body(harness, engine, wire, method, head, status) -> None:
    """HEAD, 204, 304 and length 0 end with their heads; both connections serve the next request."""

    async def behave(asked, writer) -> None:
        writer.write(head)

    one = await engine(behave)
    item = await harness(one)
    client = await item.client()
    for _ in range(2):
        answer = await client.ask(wire.get("/version", method=method), bodiless=True)
        assert answer.status == status
        assert answer.all("content-length") == ([] if b"content-length" not in head else [head[-6:-4].decode().strip()])
    assert one.connections == 1
    item.assert_accounted()


async def test_interim_answers_are_passed_over(harness, engine, wire) -> None:
    """100 and 103 from the engine are not for the client, who asked for none."""

    async def behave(asked, writer) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + wire.ok())

    item = await harness(await engine(behave))
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    status, headers = await client.head(skip_interim=False)
    assert status == 200
    assert "Link" not in dict(headers)


async def test_a_long_answer_head_passes(harness, engine, wire) -> None:
    """A 12 kB header of the engine's arrives whole, also in pieces."""
    big = b"b" * 12_000

    async def behave(asked, writer) -> None:
        data = wire.ok(head=b"X-Big: " + big + b"\r\n")
        for at in range(0, len(data), 1_000):
            writer.write(data[at : at + 1_000])
            await writer.drain()

    item = await harness(await engine(behave))
    assert (await item.ask(wire.post(wire.chat_body()))).one("x-big").encode() == big


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429, 500, 503])
@pytest.mark.parametrize(
    ("kind", "body"), [("application/json", b'{"error":{"code":"x"}}'), ("text/plain", b"No!"), ("text/html", b"")]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_errors_pass_as_they_are(harness, engine, wire, status, kind, body, stream) -> None:
    """Status, body, type and Retry-After are the engine's, sent once; of these only 503 counts against it."""

    async def behave(asked, writer) -> None:
        head = (
            f"HTTP/1.1 {status} Whatever\r\ncontent-type: {kind}\r\nRetry-After: 7\r\ncontent-length: {len(body)}\r\n"
        )
        writer.write(head.encode() + b"\r\n" + body)

    one, two = await engine(behave), await engine()
    item = await harness(one, two)
    item.fleet.mark_draining("r1")
    answer = await item.ask(wire.post(wire.chat_body(stream=stream)))
    assert (answer.status, answer.body, answer.one("content-type")) == (status, body, kind)
    assert answer.one("retry-after") == "7"
    assert (len(one.asked), len(two.asked)) == (1, 0)
    assert item.fleet.replicas["r0"].failures_in_a_row == (1 if status == 503 else 0)
    item.assert_accounted()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\nset-cookie: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000,
    ],
)
async def test_a_broken_answer_is_502(harness, engine, wire, rubbish) -> None:
    """What is no unambiguous HTTP answer reaches no client; it gets 502 upstream_broken."""

    async def behave(asked, writer) -> None:
        writer.write(rubbish)

    item = await harness(await engine(behave))
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code) == (502, "upstream_broken")
    assert item.fleet.replicas["r0"].failures_in_a_row == 1
    item.assert_accounted()


@pytest.mark.parametrize(("asked", "sent"), [("1", ["1"]), ("0", ["0"]), ("x", []), ("-1", []), ("123456", [])])
async def test_a_client_may_choose_its_rank_where_it_is_allowed(harness, engine, wire, asked, sent) -> None:
    """`upstream.client_rank`; what is no rank is dropped as ever."""
    one = await engine()
    item = await harness(one, upstream={"client_rank": True})
    await item.ask(wire.post(wire.chat_body(), headers=[f"X-Data-Parallel-Rank: {asked}"]))
    assert one.asked[0].all("x-data-parallel-rank") == sent
