"""`make bench-redis`: what a block costs in Redis, in a snapshot and in a lane's stream, as Redis itself counts it.

The agent's own outbox and writer put into a real Valkey what an engine under traffic would have them write: each
prompt's fresh blocks, as many evictions, and the blocks of what is generated, joined and spaced as an agent does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from replica.agent import redis_link
from replica.agent.lane import Lane
from replica.agent.outbox import Outbox
from router.kv import wire
from router.kv.client.client import RedisClient
from router.kv.keys import Keys
from router.kv.wire import Change, Heartbeat
from router.tools.local_valkey import start_valkey
from router.tools.processes import StartError, stop_all
from router.tools.scratch import Scratch

SNAPSHOT_LIMIT_BYTES, STREAM_LIMIT_BYTES = 24.0, 16.0
UNIT = "warmroute-pool-6c9f8d7b54-x2x7k-1a2b3c/0"
"""As long as a pod's name makes it."""
WINDOW_S, BEAT_S = 0.005, 0.4
STEP_TOKENS_PER_S = 40.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one engine does.

    Attributes:
        prompts_per_s: Requests.
        fresh_blocks: Of a prompt that its cache lacks; as many are evicted.
        running: Requests that generate at once, a block each 16 tokens.
        is_typical: The limit holds for it.
    """

    prompts_per_s: float
    fresh_blocks: int
    running: int
    is_typical: bool = True


TRAFFICS = {
    "chat": Traffic(8.0, 64, 16),
    "documents": Traffic(1.0, 1_000, 4),
    "short prompts": Traffic(20.0, 8, 32),
    "one block a batch": Traffic(0.0, 0, 1, is_typical=False),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What was found.

    Attributes:
        stream: Bytes a changed block in the lane's stream, by traffic.
        entries: Bytes a changed block in the entries' own data, by traffic.
        snapshot: Bytes a live block in a snapshot.
        swapping: The same while the next snapshot stands beside it, just before it takes its place.
    """

    stream: dict[str, float]
    entries: dict[str, float]
    snapshot: float
    swapping: float

    def failures(self) -> list[str]:
        """Which limits are missed."""
        missed = [
            f"{name}: {size:.1f} bytes a block in the stream, limit {STREAM_LIMIT_BYTES:.0f}"
            for name, size in self.stream.items()
            if TRAFFICS[name].is_typical and size > STREAM_LIMIT_BYTES
        ]
        if self.swapping > SNAPSHOT_LIMIT_BYTES:
            missed.append(f"{self.swapping:.1f} bytes a block in snapshots, limit {SNAPSHOT_LIMIT_BYTES:.0f}")
        return missed


async def measure(url: str, blocks: int, seconds: float) -> Figures:
    """Write and look; the Redis must be empty, and is not afterwards.

    Args:
        blocks: Live blocks of the snapshot.
        seconds: Of traffic, each kind; they do not pass.
    """
    client = redis_link.connect(url)
    keys = Keys()
    try:
        stream: dict[str, float] = {}
        entries: dict[str, float] = {}
        for number, (name, traffic) in enumerate(TRAFFICS.items()):
            unit = f"{number}{UNIT}"
            key = keys.stream_of(unit)
            await client.run(key, "DEL", key)
            changed, payload = await _write(client, keys, unit, traffic, seconds)
            stream[name] = await _usage(client, key) / changed
            entries[name] = payload / changed
        snapshot, swapping = await _snapshots(client, keys, blocks)
        return Figures(stream, entries, snapshot, swapping)
    finally:
        await client.close()


async def _write(client: RedisClient, keys: Keys, unit: str, traffic: Traffic, seconds: float) -> tuple[int, int]:
    """Publish, and return how many changes of blocks in how many bytes of messages."""
    lane = Lane(client, keys, unit, 60.0, 3600.0)
    await lane.mint()
    dice = random.Random(7)
    outbox, changed, payload = Outbox(WINDOW_S), 0, 0
    for window in range(int(seconds / WINDOW_S)):
        now_s = window * WINDOW_S
        if dice.random() < traffic.prompts_per_s * WINDOW_S:
            fresh = [Change(op, 0, 0, 0, _hashes(dice, traffic.fresh_blocks)) for op in ("removed", "stored")]
            outbox.add(fresh, now_s, None)
        generated = sum(dice.random() < STEP_TOKENS_PER_S / 16 * WINDOW_S for _ in range(traffic.running))
        if generated:
            outbox.add([Change("stored", 0, 0, 0, _hashes(dice, generated))], now_s, None)
        others = []
        if window % int(BEAT_S / WINDOW_S) == 0:
            others.append(Heartbeat(unit, lane.epoch, lane.sequence, traffic.running, 0, 0.5))
        if outbox.due_s <= now_s:
            outbox.take(now_s)
        batches, outbox.batches = outbox.batches, []
        if batches or others:
            await lane.publish(batches, others)
        for batch in batches:
            changed += sum(len(change.hashes) for change in batch)
            payload += len(wire.encode(wire.BlocksBatch(unit, lane.epoch, lane.sequence, batch)))
        payload += sum(len(wire.encode(beat)) for beat in others)
    return changed, payload


async def _snapshots(client: RedisClient, keys: Keys, blocks: int) -> tuple[float, float]:
    lane = Lane(client, keys, UNIT, 60.0, 3600.0)
    await lane.mint()
    layer = (0, 0, 0, _hashes(random.Random(7), blocks))
    await lane.write_snapshot([layer], 0, lane.stream_id)
    pointer = keys.snapshot_pointer(UNIT)
    name = await client.run(pointer, "GET", pointer)
    size = await _usage(client, keys.snapshot(UNIT, name.decode()))
    small = sum([await _usage(client, key) for key in (pointer, keys.epoch(UNIT))])
    return (size + small) / blocks, (2 * size + small) / blocks


async def _usage(client: RedisClient, key: str) -> int:
    return int(await client.run(key, "MEMORY", "USAGE", key, "SAMPLES", 0))


def _hashes(dice: random.Random, count: int) -> list[int]:
    return [dice.getrandbits(64) for _ in range(count)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a limit is missed."""
    parser = argparse.ArgumentParser(prog="bench-redis", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=50_000, help="live blocks (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic, not waited for (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON (default: text)")
    args = parser.parse_args(arguments)
    scratch = Scratch()
    try:
        server, url = start_valkey(scratch.folder)
        try:
            figures = asyncio.run(measure(url, args.blocks, args.seconds))
        finally:
            stop_all([server])
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        scratch.remove()
    missed = figures.failures()
    if args.json:
        print(json.dumps({**asdict(figures), "missed": missed}))
        return 1 if missed else 0
    for name, size in figures.stream.items():
        print(f"stream, {name}: {size:.1f} bytes a changed block, of which {figures.entries[name]:.1f} are messages")
    print(f"snapshot: {figures.snapshot:.1f} bytes a live block, {figures.swapping:.1f} while it is replaced")
    print("\n".join(missed) or "all within their limits")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
