"""`make bench-start`: how long until a router that starts knows what a large fleet holds, and its memory then.

A real Valkey is filled by the agent's own writer: a lease, a snapshot and a tail of batches for each replica. Then a
real router starts, is asked `/readyz` all the time, and every unit's count of blocks is held against what was written.
The engines are one small server of this process that answers health questions at as many loopback addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from loadtest.workloads.text import tokenizer_folder
from replica.agent import redis_link
from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.lane import Lane
from replica.agent.metrics import AgentMetrics
from replica.agent.proof import SchemeProof
from replica.agent.sink import UnitSink
from replica.agent.unit import UnitState
from router.kv import registration
from router.kv.keys import Keys
from router.kv.registration import RegisteredModel, Registration
from router.tools.local_valkey import start_valkey
from router.tools.processes import Child, StartError, stop_all, wait_for
from router.tools.scratch import Scratch

MODEL = "tiny"
LIMIT_S = 15.0
GIVEN_UP_S = 120.0
LEASE_S = 600.0
"""Nobody renews the leases while the router is measured."""
TAIL_BATCHES, TAIL_BLOCKS = 100, 16
SHARED_SHARE = 0.1
"""Blocks of each replica that all others hold too, as system prompts are."""
POLL_S = 0.05
START_TIMEOUT_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, start, measure, print; 1 when the limit is not held."""
    parser = argparse.ArgumentParser(prog="bench-start", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, default=100, help="replicas, 1 to 250 (default: 100)")
    parser.add_argument("--blocks", type=int, default=50_000, help="blocks of each (default: 50000)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds until ready (default: 15)")
    args = parser.parse_args(arguments)
    scratch = Scratch()
    children: list[Child] = []
    try:
        found = asyncio.run(_measure(args.replicas, args.blocks, scratch.folder, children))
    except StartError as error:
        print(error)
        return 1
    finally:
        stop_all(children)
        scratch.remove()
    held = found["ready_s"] <= args.limit_s and not found["wrong_units"]
    print(json.dumps({"passed": held, "limit_s": args.limit_s, **found}))
    return 0 if held else 1


async def _measure(replicas: int, blocks: int, folder: Path, children: list[Child]) -> dict[str, Any]:
    valkey, redis_url = start_valkey(folder)
    children.append(valkey)
    hosts = [f"127.0.1.{number + 1}" for number in range(replicas)]
    engines = await _engines(hosts)
    try:
        written = {}
        began_s = time.monotonic()
        shared = array("Q", (random.getrandbits(64) for _ in range(int(blocks * SHARED_SHARE))))
        for number, host in enumerate(hosts):
            port = engines.addresses[number][1]
            written[f"r{number}"] = await _write(redis_url, f"r{number}", f"http://{host}:{port}", blocks, shared)
        print(f"{replicas} replicas of {blocks} blocks are in Valkey, written in {time.monotonic() - began_s:.1f} s")
        return await _start(redis_url, folder, children, written)
    finally:
        await engines.cleanup()


async def _engines(hosts: list[str]) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    application = web.Application()
    application.router.add_get("/health", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    for host in hosts:
        await web.TCPSite(runner, host, 0).start()
    return runner


async def _write(redis_url: str, replica_id: str, url: str, blocks: int, shared: array[int]) -> int:
    """Write a unit as its agent does; return how many blocks it holds."""
    unit_id = f"{replica_id}/0"
    unit = UnitState(unit_id, VllmAdapter(), SchemeProof("sha256_cbor", 16, None), blocks)
    tail = min(TAIL_BATCHES * TAIL_BLOCKS, blocks // 2)
    own = [random.getrandbits(64) for _ in range(blocks - len(shared))]
    unit.accept(0, _event([*shared, *own[tail:]]))
    client = redis_link.connect(redis_url)
    lane = Lane(client, Keys(), unit_id, LEASE_S, LEASE_S)
    sink = UnitSink(unit, lane, LEASE_S, LEASE_S, redis_link.shown(redis_url), AgentMetrics(), coalesce_s=0.0)
    task = asyncio.create_task(sink.run())

    def lease(epoch: int) -> bytes:
        said = Registration(
            unit=unit_id,
            replica_id=replica_id,
            url=url,
            models=[RegisteredModel(MODEL, MODEL)],
            algorithm="sha256_cbor",
            block_size=16,
            num_blocks=blocks,
            trust="exact",
            epoch=epoch,
        )
        return registration.encode(said, None)

    sink.register(lease)
    await sink.ready.wait()
    for number, start in enumerate(range(0, tail, TAIL_BLOCKS), start=1):
        part = own[start : min(tail, start + TAIL_BLOCKS)]
        sequence = lane.sequence
        sink.offer(unit.accept(number, _event(part)), time.monotonic())
        while lane.sequence == sequence:  # noqa: ASYNC110 - each batch by itself, as a busy engine's come
            await asyncio.sleep(0)
    sink.end()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await client.close()
    return len(unit.copies)


def _event(hashes: list[int]) -> bytes:
    """Return a batch as an engine publishes it: blocks without their tokens, which nobody needs here."""
    stored = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 16,
        "medium": "GPU",
    }
    return msgspec.msgpack.encode([time.time(), [stored], 0])


async def _start(redis_url: str, folder: Path, children: list[Child], written: dict[str, int]) -> dict[str, Any]:
    config = {
        "listen": "127.0.0.1:0",
        "models": [{"name": MODEL, "tokenizer": str(tokenizer_folder())}],
        "redis": redis_url,
    }
    path = folder / "router.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    began_s = time.monotonic()
    router = Child("router", [sys.executable, "-m", "router.cli", "router", "--config", str(path)], folder)
    children.append(router)
    # Not in a thread: a child dies with the thread that started it.
    url = wait_for("the router is bound", router.ready_line, children, START_TIMEOUT_S)["http"]
    print(f"{time.monotonic() - began_s:5.1f} s: the router is bound")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as client:
        said = ""
        while True:
            answer = await _get(client, f"{url}/readyz")
            reasons = "; ".join(answer["reasons"]) or "ready"
            if reasons != said:
                said = reasons
                print(f"{time.monotonic() - began_s:5.1f} s: {reasons}")
            if answer["ready"]:
                break
            if time.monotonic() - began_s > GIVEN_UP_S:
                raise StartError(f"not ready after {GIVEN_UP_S:g} s")
            await asyncio.sleep(POLL_S)
        ready_s, cpu_s = time.monotonic() - began_s, _cpu_s(router.pid)
        replicas = (await _get(client, f"{url}/admin/replicas"))["replicas"]
    known = {replica["replica"]: replica["units"][0]["blocks"] for replica in replicas}
    wrong = [f"{name}: {known.get(name)} of {blocks}" for name, blocks in written.items() if known.get(name) != blocks]
    rss_bytes = _rss_bytes(router.pid)
    return {
        "ready_s": round(ready_s, 2),
        "cpu_s": round(cpu_s, 2),
        "replicas": len(known),
        "blocks": sum(known.values()),
        "wrong_units": wrong[:5],
        "rss_mb": round(rss_bytes / 2**20),
        "rss_bytes_a_block": round(rss_bytes / max(1, sum(known.values()))),
    }


async def _get(client: aiohttp.ClientSession, url: str) -> Any:
    async with client.get(url) as answer:
        return await answer.json()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
