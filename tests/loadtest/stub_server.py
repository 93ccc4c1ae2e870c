"""An OpenAI endpoint of known delay: waits `max_tokens` milliseconds, and says in its answer when it wrote it."""

from __future__ import annotations

import asyncio
import json
import time

import uvloop
from aiohttp import web


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-warmroute-replica": "stub"})
    await response.prepare(request)
    await asyncio.sleep(body["max_tokens"] / 1_000)
    # CLOCK_MONOTONIC, which all processes of a machine share.
    piece = {"choices": [{"delta": {"content": f"{time.perf_counter():.6f}"}}]}
    await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def main() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(json.dumps({"http": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
