"""Slow clients tell what they did not get."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from router.tools.soak import clients
from router.tools.soak.__main__ import main

WHOLE = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, dict[str, bytes | int]]]:
    """A server that answers each request with `told["body"]` and `told["status"]`."""
    told: dict[str, bytes | int] = {"body": WHOLE, "status": 200}

    async def answer(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return web.Response(status=400, text="not JSON")
        body, status = told["body"], told["status"]
        assert isinstance(body, bytes)
        assert isinstance(status, int)
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_post(clients.PATH, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", told
    await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (WHOLE, 200, None),
        (WHOLE.replace(b"[DONE]", b"{}"), 200, "the stream ended early"),
        (b'data: {"error":{"message":"no room"}}\n\n', 200, "no room"),
        (b"busy", 503, "HTTP 503: busy"),
    ],
)
async def test_what_is_not_whole_is_told(
    server: tuple[str, dict[str, bytes | int]],
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    status: int,
    problem: str | None,
) -> None:
    """By each of the clients, in words."""
    monkeypatch.setattr(clients, "READ_EACH_S", 0.0)
    url, told = server
    told |= {"body": body, "status": status}
    found = await clients.read_slowly([url])
    assert found == ([f"slow client: {problem}"] * clients.SLOW if problem else [])


async def test_clients_leave_what_they_began(
    server: tuple[str, dict[str, bytes | int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is refused before, tells it."""
    monkeypatch.setattr(clients, "LEAVES_S", (30.0, 30.0))
    url, told = server
    async with aiohttp.ClientSession() as client:
        assert await clients.leave(client, [url], random.Random(1)) == []
        told |= {"body": b"busy", "status": 503}
        assert (
            await clients.leave(client, [url], random.Random(1)) == ["leaving client: HTTP 503: busy"] * clients.LEAVING
        )


def test_too_short_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(["--minutes", "0.5"])
    assert ended.value.code == 2
    assert "at least 1" in capsys.readouterr().err
