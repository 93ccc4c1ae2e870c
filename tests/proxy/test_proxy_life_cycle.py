"""Listening, draining, closing (K8S-03); and that the seams fit the core."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from aiohttp import web

from router.admin.runner import AdminRunner
from router.errors import WarmrouteError
from router.fleet.fleet import Fleet
from router.placement import Placer
from router.proxy.seams import Health, Places, Reader, Records
from router.request.reader import PromptReader
from router.telemetry.recorder import Recorder


@pytest.mark.parametrize(
    ("seam", "real"), [(Reader, PromptReader), (Places, Placer), (Health, Fleet), (Records, Recorder)]
)
def test_the_core_has_what_the_seams_ask(seam: type, real: type) -> None:
    """Every member of a seam exists on the real class (mypy holds their types together where app.py joins them)."""
    wanted = {name for name in vars(seam) if not name.startswith("_")}
    assert wanted
    assert wanted <= set(dir(real))


async def test_drain_lets_streams_finish(harness, engine, wire, eventually) -> None:
    """While draining nothing new is accepted; running streams complete; then all is closed, without waiting longer."""
    go = asyncio.Event()

    async def behave(asked, writer) -> None:
        writer.write(wire.sse_head + wire.chunk(b"data: a\n\n"))
        await go.wait()
        writer.write(wire.chunk(b"data: b\n\n") + b"0\r\n\r\n")

    item = await harness(await engine(behave))
    clients = [await item.client() for _ in range(20)]
    for client in clients:
        client.send(wire.post(wire.chat_body(stream=True)))
    await eventually(lambda: len(item.plane.forwarder.running) == 20)
    idle = await item.client()
    await eventually(lambda: len(item.plane.door.connections) == 21)
    begun_s = time.monotonic()
    draining = asyncio.ensure_future(item.plane.drain(20))
    assert await idle.closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", item.port)
    assert not draining.done()
    go.set()
    answers = [await client.answer() for client in clients]
    assert {answer.body for answer in answers} == {b"data: a\n\ndata: b\n\n"}
    assert all(answer.ended for answer in answers)
    await draining
    assert time.monotonic() - begun_s < 5
    item.assert_accounted()


async def test_announced_drain_ends_connections_with_their_answers(harness, engine, wire) -> None:
    """Between SIGTERM and the drain requests are served, each answer saying Connection: close."""
    item = await harness(await engine())
    client = await item.client()
    assert (await client.ask(wire.post(wire.chat_body()))).all("connection") == []
    item.plane.announce_drain()
    answer = await client.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.one("connection")) == (200, "close")
    assert await client.closed()
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200


async def test_drain_serves_what_has_reached_the_sockets(harness, engine, wire) -> None:
    """Requests that the kernel holds when a drain begins are answered, on open connections and on new ones."""
    item = await harness(await engine())
    clients = [await item.client() for _ in range(48)]
    for client in clients:
        await client.ask(wire.post(wire.chat_body()))
    fresh = [socket.create_connection(("127.0.0.1", item.port)) for _ in range(8)]
    for client in clients:
        client.send(wire.post(wire.chat_body()))
    for each in fresh:
        each.sendall(wire.post(wire.chat_body()))
    await item.plane.drain(20)
    answers = [await client.answer() for client in clients]
    assert {(answer.status, answer.one("connection")) for answer in answers} == {(200, "close")}
    for each in fresh:
        assert each.recv(65_536).startswith(b"HTTP/1.1 200")
        each.close()
    item.assert_accounted()


async def test_drain_cuts_what_does_not_end(harness, engine, wire, eventually) -> None:
    """After its time a drain cuts the rest, and the engine's work with it."""

    async def silent(asked, writer) -> None:
        await asyncio.sleep(30)

    one = await engine(silent)
    item = await harness(one)
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    await eventually(lambda: one.asked)
    begun_s = time.monotonic()
    await item.plane.drain(0.2)
    assert 0.19 <= time.monotonic() - begun_s < 2
    assert await client.closed()
    await eventually(lambda: one.open == 0)
    item.assert_accounted()


async def test_idle_engine_connections_are_let_go(harness, engine, wire, eventually) -> None:
    """A kept connection is closed after `upstream_idle_s`, before the engine would; the next request opens another."""
    one = await engine()
    item = await harness(one, timeouts={"upstream_idle_s": 0.2})
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200
    assert item.plane.pool.idle_count(("127.0.0.1", one.port, False)) == 1
    await eventually(lambda: one.open == 0, timeout_s=2)
    assert item.plane.pool.open_count == 0
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200
    assert one.connections == 2


async def test_a_fault_of_our_own_is_a_500(harness, engine, wire) -> None:
    """If the reader fails against its promise, the client hears internal_error and the next request is served."""
    item = await harness(await engine())
    read = item.reader.read

    def failing(path, body):
        raise RuntimeError("marker PT-444")

    item.reader.read = failing
    client = await item.client()
    answer = await client.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code) == (500, WarmrouteError.code)
    assert b"PT-444" not in answer.body
    item.reader.read = read
    assert (await client.ask(wire.post(wire.chat_body()))).status == 200
    item.assert_accounted()


async def test_a_port_in_use_is_an_os_error(harness, engine) -> None:
    """Listening on a port that another process has raises OSError, which the app turns into words."""
    item = await harness(await engine())
    with pytest.raises(OSError, match="in use"):
        await harness(listen=f"127.0.0.1:{item.port}")


async def test_admin_on_the_same_port(harness, engine, wire) -> None:
    """aiohttp serves an admin request on a shared port and closes; engines' requests go on beside it."""

    async def healthz(request: web.Request) -> web.Response:
        return web.json_response({"got": (await request.read()).decode()})

    app = web.Application()
    app.router.add_route("*", "/healthz", healthz)
    runner = AdminRunner(app)
    await runner.setup()
    item = await harness(await engine(), admin_handoff=runner.take_over)
    client = await item.client()
    assert (await client.ask(wire.post(wire.chat_body()))).status == 200
    request = wire.post(b"body in two parts", path="/healthz?x=1")
    client.send(request[:-5])
    await asyncio.sleep(0)
    answer = await client.ask(request[-5:])
    assert (answer.status, answer.body) == (200, b'{"got": "body in two parts"}')
    assert await client.closed()
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200
    await runner.cleanup()


async def test_half_a_head_does_not_hold_a_drain(harness, engine, wire) -> None:
    """It gets a second to come in, then it is told to go elsewhere."""
    item = await harness(await engine())
    client = await item.client()
    assert (await client.ask(wire.post(wire.chat_body()))).status == 200
    client.send(b"POST /v1/completions HTTP/1.1\r\nHost: ro")
    begun_s = time.monotonic()
    draining = asyncio.ensure_future(item.plane.drain(20))
    answer = await client.answer()
    assert (answer.status, answer.code) == (503, "draining")
    client.close()
    await draining
    assert time.monotonic() - begun_s < 4
