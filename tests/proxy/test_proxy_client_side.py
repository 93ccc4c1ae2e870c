"""A client's side: what is a request, what is refused, and what the connection does next."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from router.proxy.client_connection import ClientConnection


async def test_keep_alive_serves_many_requests_on_one_connection(harness, engine, wire) -> None:
    """Five requests on one client connection use one connection to the engine, bodies unchanged."""
    one = await engine()
    item = await harness(one)
    client = await item.client()
    bodies = [wire.chat_body(f"ünï {number}") for number in range(5)]
    for body in bodies:
        assert (await client.ask(wire.post(body))).status == 200
    assert [asked.body for asked in one.asked] == bodies
    assert one.connections == 1
    item.assert_accounted()


async def test_pipelined_requests_are_answered_in_order(harness, engine, wire) -> None:
    """Requests sent at once are answered one after the other, refusals among them."""

    async def behave(asked, writer) -> None:
        writer.write(wire.ok(asked.body))

    item = await harness(await engine(behave))
    client = await item.client()
    bodies = [wire.chat_body(str(number)) for number in range(3)]
    client.send(wire.post(bodies[0]) + wire.get("/nope") + wire.post(bodies[1]) + wire.post(bodies[2]))
    answers = [await client.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 404, 200, 200]
    assert [answers[0].body, answers[2].body, answers[3].body] == bodies
    item.assert_accounted()


async def test_a_client_that_pipelines_and_never_reads_holds_bounded_memory(harness, engine, wire, eventually) -> None:
    """Refusals are not piled up for a client that does not read them."""
    item = await harness(await engine())
    # The receive buffer is small before the connection is made: a window that shrinks later makes the kernel drop what
    # it had promised to take, and the flood then waits for retransmissions.
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sender.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sender, ("127.0.0.1", item.port))
    flood = asyncio.ensure_future(loop.sock_sendall(sender, wire.get("/nope") * 100_000))
    try:
        (connection,) = await eventually(lambda: item.plane.door.connections)
        # With nobody reading, answers fill both kernels' buffers, then the router's own, and then it must pause.
        await eventually(lambda: connection._reading_paused, timeout_s=60, what="reading from it is paused")
        assert connection._transport.get_write_buffer_size() < 300_000
        assert item.notes.accepted_count < 100_000
    finally:
        flood.cancel()
        await asyncio.wait({flood})
        sender.close()


async def test_many_requests_in_one_segment_cost_no_more_than_one_by_one(harness, engine, wire) -> None:
    """Each request is read where it stands: what follows it is not copied, so their number does not count twice."""
    item = await harness(await engine())
    connection = ClientConnection(item.plane.door)

    class Sink(asyncio.Transport):
        def write(self, data: bytes) -> None:
            pass

        def pause_reading(self) -> None:
            pass

    class Segment(bytes):
        copied = 0

        def __getitem__(self, key):
            piece = super().__getitem__(key)
            if isinstance(key, slice):
                Segment.copied += len(piece)
            return piece

    connection.connection_made(Sink())
    for one in (wire.get("/nope"), wire.post(b"x" * 10, "/nope"), wire.post(b"x" * 10, "/nope2", ["X-A: b"])):
        Segment.copied = 0
        connection.data_received(Segment(one * 1_000))
        assert Segment.copied <= 2_000 * len(one)
    assert item.notes.accepted_count == 3_000
    connection.connection_lost(None)


async def test_http_1_0_client_gets_a_closed_unchunked_answer(harness, engine, wire) -> None:
    """A chunked answer reaches an HTTP/1.0 client without the coding, ended by close; no 1xx, no chunk sizes."""

    async def behave(asked, writer) -> None:
        writer.write(wire.sse_head + wire.chunk(b"data: a\n\n") + wire.chunk(b"data: b\n\n") + b"0\r\n\r\n")

    item = await harness(await engine(behave))
    answer = await item.ask(wire.post(wire.chat_body(stream=True), version="1.0"))
    assert answer.body == b"data: a\n\ndata: b\n\n"
    assert answer.all("transfer-encoding") == []
    assert answer.one("connection") == "close"
    item.assert_accounted()


async def test_http_1_0_keep_alive(harness, engine, wire) -> None:
    """HTTP/1.0 with Connection: keep-alive is kept, and told so."""
    item = await harness(await engine())
    client = await item.client()
    for _ in range(2):
        answer = await client.ask(wire.post(wire.chat_body(), headers=["Connection: keep-alive"], version="1.0"))
        assert answer.one("connection") == "keep-alive"


@pytest.mark.parametrize("split", [1, 7, 10_000])
async def test_chunked_request_reaches_the_engine_with_a_length(harness, engine, wire, split) -> None:
    """The engine gets the same bytes under a Content-Length, however the chunks were cut."""
    one = await engine()
    item = await harness(one)
    body = wire.chat_body("x" * 300)
    chunks = b"".join(wire.chunk(body[at : at + 50]) for at in range(0, len(body), 50)) + b"0\r\n\r\n"
    data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    client = await item.client()
    for at in range(0, len(data), split):
        client.send(data[at : at + split])
        await client.writer.drain()
    assert (await client.answer()).status == 200
    assert one.asked[0].body == body
    assert one.asked[0].all("content-length") == [str(len(body))]
    assert one.asked[0].all("transfer-encoding") == []
    assert (await client.ask(wire.post(body))).status == 200
    item.assert_accounted()


async def test_expect_100_is_answered_at_once_when_acceptable(harness, engine, wire) -> None:
    """A client that waits for 100 gets it before it sends the body; the engine sees no Expect."""
    one = await engine()
    item = await harness(one)
    client = await item.client()
    body = wire.chat_body()
    client.send(wire.post(body, headers=["Expect: 100-continue"])[: -len(body)])
    assert (await client.head(skip_interim=False))[0] == 100
    client.send(body)
    assert (await client.answer()).status == 200
    assert one.asked[0].all("expect") == []


async def test_expect_100_gets_the_final_status_when_not(harness, engine, wire) -> None:
    """Over the limit the client hears 413 and no 100, without having sent a byte of the body."""
    item = await harness(await engine(), limits={"body_bytes": 1_024})
    client = await item.client()
    client.send(wire.post(b"x" * 2_000, headers=["Expect: 100-continue"])[:-2_000])
    assert (await client.head(skip_interim=False))[0] == 413


@pytest.mark.parametrize("chunked", [False, True])
async def test_413_is_readable_while_the_client_is_still_sending(harness, engine, wire, chunked) -> None:
    """A body over the limit: the whole JSON answer arrives though the client goes on sending megabytes."""
    one = await engine()
    item = await harness(one, limits={"body_bytes": 100_000})
    client = await item.client()
    if chunked:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(wire.chunk(b"x" * 4_000_000))
    else:
        client.send(wire.post(b"x" * 4_000_000))
    await client.writer.drain()
    answer = await client.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert answer.one("x-request-id")
    assert await client.closed()
    assert one.asked == []
    item.assert_accounted()


async def test_a_large_body_passes_unchanged_up_to_the_limit(harness, engine, wire) -> None:
    """20 MiB at the default limit, byte for byte, read in a worker thread."""
    one = await engine()
    item = await harness(one)
    body = wire.chat_body("image", pad=20 * 2**20)
    assert (await item.ask(wire.post(body))).status == 200
    assert one.asked[0].body == body
    item.assert_accounted()


async def test_all_bodies_together_are_bounded(harness, engine, wire, eventually) -> None:
    """Uploads over `buffered_bytes` in sum are refused with 503, and memory is free again afterwards."""
    item = await harness(await engine(), limits={"buffered_bytes": 2**20})
    first, second = await item.client(), await item.client()
    first.send(wire.post(b"x" * 900_000)[:-1])
    await eventually(lambda: item.plane.door.budget.used_bytes > 800_000)
    second.send(wire.post(b"x" * 900_000))
    answer = await second.answer()
    assert (answer.status, answer.code) == (503, "overloaded")
    first.close()
    await eventually(lambda: item.plane.door.budget.used_bytes == 0)


async def test_long_headers_pass_and_longer_ones_are_431(harness, engine, wire) -> None:
    """A 12 kB cookie and a 9 kB query pass; over `header_bytes` it is 431 in JSON, also while still sending."""
    one = await engine()
    item = await harness(one)
    query = "?q=" + "u" * 9_000
    cookie = "c" * 12_000
    answer = await item.ask(
        wire.post(wire.chat_body(), path="/v1/chat/completions" + query, headers=[f"Cookie: {cookie}"])
    )
    assert answer.status == 200
    assert one.asked[0].all("cookie") == [cookie]
    assert query in one.asked[0].line
    answer = await item.ask(wire.get("/v1/models", headers=["X-Big: " + "x" * 1_000_000]))
    assert (answer.status, answer.code) == (431, "headers_too_large")
    item.assert_accounted()


async def test_connections_over_the_limit_are_told(harness, engine, wire, eventually) -> None:
    """The connection over `limits.connections` reads 503 in JSON; the others go on."""
    item = await harness(await engine(), limits={"connections": 1})
    first = await item.client()
    await eventually(lambda: item.plane.door.connections)
    answer = await (await item.client()).answer()
    assert (answer.status, answer.code) == (503, "overloaded")
    assert (await first.ask(wire.post(wire.chat_body()))).status == 200


@pytest.mark.parametrize("sent", [b"POST /v1/chat/completions HT", b"POST /v1/tokenize HTTP/1.1\r\nHost: r\r\n"])
async def test_slow_heads_time_out(harness, engine, sent) -> None:
    """A head that does not come in time is 408 in JSON, and the connection ends."""
    item = await harness(await engine(), timeouts={"request_s": 0.2})
    client = await item.client()
    answer = await client.ask(sent)
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert await client.closed()


async def test_slow_bodies_time_out(harness, engine, wire) -> None:
    """A body that stops coming is 408; nothing reaches an engine."""
    one = await engine()
    item = await harness(one, timeouts={"request_s": 0.2})
    answer = await item.ask(wire.post(wire.chat_body())[:-1])
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert one.connections == 0
    item.assert_accounted()


async def test_idle_connections_are_closed(harness, engine, wire) -> None:
    """A kept connection ends silently after `keepalive_s`."""
    item = await harness(await engine(), timeouts={"keepalive_s": 0.2})
    client = await item.client()
    await client.ask(wire.post(wire.chat_body()))
    assert await client.closed()


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-123_X", True), ("a" * 128, True), ("a" * 129, False), ("two words", False), ("\x80", False), ("", False)],
)
async def test_request_ids(harness, engine, wire, sent, kept) -> None:
    """A sane id of the client's is kept in answer and request; else one is made; an error has one too."""
    one = await engine()
    item = await harness(one)
    answer = await item.ask(wire.post(wire.chat_body(), headers=[f"X-Request-Id: {sent}"]))
    assert (answer.one("x-request-id") == sent) is kept
    assert one.asked[0].all("x-request-id") == [answer.one("x-request-id")]
    assert (await item.ask(wire.get("/nope"))).one("x-request-id")


async def test_upgrades_and_connect_are_refused(harness, engine, wire) -> None:
    """WebSocket and CONNECT get a clear 400 and a closed connection; an offer of h2c is ignored."""
    one = await engine()
    item = await harness(one)
    for data in (
        wire.get("/v1/models", ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]),
        b"CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\n",
    ):
        client = await item.client()
        answer = await client.ask(data)
        assert (answer.status, answer.code) == (400, "upgrade_refused")
        assert await client.closed()
    body = wire.chat_body()
    offer = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"]
    assert (await item.ask(wire.post(body, headers=offer))).status == 200
    assert [name for name, _ in one.asked[0].headers] == ["host", "x-request-id", "content-length"]


async def test_paths_outside_the_list_never_reach_an_engine(harness, engine, wire) -> None:
    """Engine control paths, spelled any way, are 404 path_not_found; the connection goes on, body or not."""
    one = await engine()
    item = await harness(one)
    client = await item.client()
    for path in (
        "/reset_prefix_cache",
        "/v1/models/..%2f..%2fsleep",
        "/metrics",
        "/healthz",
        "/admin/",
        "/invocations",
    ):
        answer = await client.ask(wire.post(b"{}", path=path))
        assert (answer.status, answer.code) == (404, "path_not_found")
        assert answer.one("content-type") == "application/json"
    assert one.connections == 0
    item.assert_accounted()


async def test_the_canonical_path_and_the_raw_query_are_sent(harness, engine, wire) -> None:
    """What was matched is what is sent: `//v1/%63hat/completions/` arrives as its entry of the list."""
    one = await engine()
    item = await harness(one)
    await item.ask(wire.post(wire.chat_body(), path="//v1/%63hat/completions/?x=a%2Fb&y=%20"))
    assert one.asked[0].line == "POST /v1/chat/completions?x=a%2Fb&y=%20 HTTP/1.1"


async def test_models_are_the_fleets(harness, engine, wire) -> None:
    """GET and HEAD /v1/models answer from what the fleet serves, without asking an engine; POST is 405."""
    one, two = await engine(), await engine()
    item = await harness(one)
    item.announce(two, "r1", models=("tiny", "other"))
    answer = await item.ask(wire.get("/v1/models?x=a%2Fb"))
    listed = json.loads(answer.body)
    assert [model["id"] for model in listed["data"]] == ["other", "tiny"]
    assert {model["object"] for model in listed["data"]} == {"model"}
    head = await item.ask(wire.get("/v1/models", method="HEAD"), bodiless=True)
    assert (head.status, head.one("content-length")) == (200, str(len(answer.body)))
    refused = await item.ask(wire.post(b"{}", path="/v1/models"))
    assert (refused.status, refused.code, refused.one("allow")) == (405, "method_not_allowed", "GET, HEAD")
    assert one.connections == two.connections == 0


async def test_admin_paths_are_handed_over_with_what_was_read(harness, engine, wire) -> None:
    """On a shared port an admin request goes to the other protocol, told to close; the next opens a new connection."""
    got: list[bytes] = []

    def handoff(transport: asyncio.Transport, data: bytes) -> asyncio.Protocol:
        got.append(data)
        transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nup")
        protocol = asyncio.Protocol()
        transport.set_protocol(protocol)
        return protocol

    item = await harness(await engine(), admin_handoff=handoff)
    client = await item.client()
    assert (await client.ask(wire.post(wire.chat_body()))).status == 200
    answer = await client.ask(wire.post(b"{}", path="/admin/explain", headers=["Connection: keep-alive", "A: b"]))
    assert answer.body == b"up"
    assert got == [
        b"POST /admin/explain HTTP/1.1\r\nHost: router\r\nContent-Length: 2\r\nA: b\r\nconnection: close\r\n\r\n{}"
    ]
    assert not item.plane.door.connections


async def test_no_delay_is_set(harness, engine, wire, eventually) -> None:
    """TCP_NODELAY is on towards clients: a small chunk never waits for an acknowledgement."""
    item = await harness(await engine())
    await item.client()
    (connection,) = await eventually(lambda: item.plane.door.connections)
    connected = connection._transport.get_extra_info("socket")
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_chunk_over_the_limit_is_refused_at_its_header(harness, engine, wire) -> None:
    """Before its data is sent: 2^40 bytes are announced and none follows."""
    item = await harness(await engine())
    client = await item.client()
    client.send(
        wire.get("/v1/completions", ["Transfer-Encoding: chunked"], "POST") + wire.chunk(b"{") + b"10000000000\r\n"
    )
    answer = await client.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    item.assert_accounted()
