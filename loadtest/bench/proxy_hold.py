"""`make bench-proxy ARGS=--hold`: memory of a router after many prompts, with idle clients, with open streams."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable

import uvloop

from loadtest.bench.proxy_fleet import MODEL
from loadtest.bench.proxy_load import Heard, Requests, chat, run

DISTINCT, STEP, SIZE_BYTES = 100_000, 20_000, 8_192
IDLE = 10_000
STREAMS = 2_000


def hold(port: int, rss_mb: Callable[[], float], streams_s: float) -> None:
    """Print what the router on a port holds.

    Args:
        rss_mb: Its resident memory now.
        streams_s: For how long streams are kept open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"just started: {rss_mb():.0f} MB", flush=True)
    uvloop.run(_idle(port, rss_mb))
    uvloop.run(_streams(port, rss_mb, streams_s))
    body = chat(SIZE_BYTES, stream=False, model=MODEL)
    errors = 0
    for first in range(0, DISTINCT + STEP, STEP):
        errors += uvloop.run(run(port, Requests(body, 0, STEP, first), 16, 0, None)).errors
        print(f"after {first + STEP:,} distinct prompts of 8 KB: {rss_mb():.0f} MB, {errors} errors", flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _idle(port: int, rss_mb: Callable[[], float]) -> None:
    before_mb = rss_mb()
    opened = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(IDLE)]
    await asyncio.sleep(1)
    print(f"{len(opened):,} idle connections: {rss_mb():.0f} MB, before {before_mb:.0f} MB", flush=True)
    for writer in opened:
        writer.transport.abort()
    await asyncio.sleep(1)


async def _streams(port: int, rss_mb: Callable[[], float], seconds: float) -> None:
    requests = Requests(chat(200, stream=True, model=MODEL), 256)
    under_way = asyncio.ensure_future(run(port, requests, STREAMS, 5, seconds))
    begun_s = time.monotonic()
    figures: list[str] = []
    while not under_way.done():
        await asyncio.wait({under_way}, timeout=max(5.0, seconds / 4))
        figures.append(f"{rss_mb():.0f} MB at {time.monotonic() - begun_s:.0f} s")
    heard: Heard = under_way.result()
    print(f"{STREAMS:,} streams: {', '.join(figures)}; {heard.chunks:,} chunks, {heard.errors} errors", flush=True)
