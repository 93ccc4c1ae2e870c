"""An engine for `make bench-agent`: its HTTP side, and events at a given rate, in a process of its own.

Prompts of 25 fresh blocks come in and the oldest go: as many blocks are removed as are stored once the cache is full.
The last block of a prompt tells in its hash when its frame was sent, so that whoever sees it in Redis knows how long it
took.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from typing import Any

import msgspec
import zmq
from aiohttp import web

from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme

BLOCK_TOKENS, PROMPT_BLOCKS = 16, 25
STAMP_BITS = 51
"""Microseconds since 1970 take so many bits until the year 2041."""
STAMPED = 0b101 << 61
"""The three highest bits of a hash that tells a time."""


def stamp_of(block: int) -> float | None:
    """Return the Unix time in seconds that a hash tells, or None."""
    return (block & ((1 << STAMP_BITS) - 1)) / 1e6 if block >> 61 == STAMPED >> 61 else None


class BenchEngine:
    """See the module.

    Args:
        blocks: Blocks that are live once it is full.
        mapped: Let its hash algorithm be one that nobody knows.
    """

    def __init__(self, blocks: int, *, mapped: bool) -> None:
        self._rng = random.Random(1)
        self._capacity = blocks
        self._algorithm = "blake3" if mapped else "sha256_cbor"
        self._prompts: deque[list[int]] = deque()
        self._live = 0
        self._sequence = 0
        context: zmq.Context[Any] = zmq.Context.instance()
        self._pub = context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, 0)
        self._port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self._tokens = [[self._rng.randrange(32_000) for _ in range(BLOCK_TOKENS * PROMPT_BLOCKS)] for _ in range(64)]

    def prompt(self) -> list[dict[str, Any]]:
        """Return the events of one more prompt, and of the one that goes for it."""
        hashes = [self._rng.getrandbits(61) | 1 << 63 for _ in range(PROMPT_BLOCKS)]
        hashes[-1] = STAMPED | self._rng.getrandbits(61 - STAMP_BITS) << STAMP_BITS | int(time.time() * 1e6)
        tokens = self._rng.choice(self._tokens)
        tokens[0] = self._rng.randrange(1 << 30)
        events = [_stored(hashes, tokens)]
        self._prompts.append(hashes)
        self._live += len(hashes)
        if self._live > self._capacity:
            gone = self._prompts.popleft()
            self._live -= len(gone)
            events.insert(0, {"type": "BlockRemoved", "block_hashes": gone[::-1], "medium": "GPU", "group_idx": 0})
        return events

    def send(self, events: list[dict[str, Any]]) -> None:
        """Publish one batch."""
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._pub.send_multipart([b"kv", self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1

    def prove(self) -> None:
        """Publish one block whose hash is the scheme's."""
        scheme = Scheme(HashAlgorithm.SHA256_CBOR, BLOCK_TOKENS)
        self.send([_stored(chain(list(range(BLOCK_TOKENS)), scheme), list(range(BLOCK_TOKENS)))])

    async def fill(self) -> None:
        """Publish until it is full, not faster than an agent reads."""
        while self._live + PROMPT_BLOCKS <= self._capacity:
            self.send(self.prompt())
            if self._sequence % 20 == 0:
                await asyncio.sleep(0.02)

    async def run(self, events_per_s: float, seconds: float) -> None:
        """Publish `events_per_s` blocks stored or removed, in frames of two prompts."""
        begun, sent = time.perf_counter(), 0
        while (now := time.perf_counter() - begun) < seconds:
            while sent < now * events_per_s:
                events = self.prompt() + self.prompt()
                self.send(events)
                sent += sum(len(event["block_hashes"]) for event in events)
            await asyncio.sleep(0.001)

    async def serve(self) -> None:
        """Answer over HTTP, tell the address, and do what lines of standard input say."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/kv_event_sources", self._sources)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(json.dumps({"http": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            if words[0] == "fill":
                self.prove()
                await self.fill()
            else:
                await self.run(float(words[1]), float(words[2]))
            print(json.dumps({"live": self._live, "sequence": self._sequence}), flush=True)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "root": "tiny"}]})

    async def _sources(self, _: web.Request) -> web.Response:
        return web.json_response({"0": {"endpoint": f"tcp://127.0.0.1:{self._port}"}})

    async def _metrics(self, _: web.Request) -> web.Response:
        labels = f'block_size="16",num_gpu_blocks="{2 * self._capacity}",prefix_caching_hash_algo="{self._algorithm}"'
        load = "".join(
            f"vllm:{name} 0\n" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        )
        return web.Response(text=f"{load}vllm:cache_config_info{{{labels}}} 1.0\n")


def _stored(hashes: list[int], tokens: list[int]) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


if __name__ == "__main__":
    asyncio.run(BenchEngine(int(sys.argv[1]), mapped=sys.argv[2] == "mapped").serve())
