"""Which blocks the index holds for a replica: to compare two routers, or a router with an engine.

The index may hold millions of entries, and this reads all of them, a slice at a time: requests go on meanwhile, and
what changes in between may be missed. On a fleet at rest it is exact.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import Any

import xxhash

from router.fleet.replica import Replica, Unit
from router.index.prefix_index import PrefixIndex

DEFAULT_BLOCKS = 1_000
MAX_BLOCKS = 100_000
Block = tuple[int, int, int]
"""(hash, tier, group)."""


async def block_list(replica: Replica, index: PrefixIndex, limit: int, after: int) -> dict[str, Any]:
    """Return each unit's blocks for JSON: count and digest of all of them, and up to `limit` in order of their hashes.

    Args:
        limit: Blocks listed for each unit, 0 to `MAX_BLOCKS`.
        after: Only those with a greater hash are listed; -1: from the beginning.
    """
    return {
        "replica": replica.replica_id,
        "units": [await _unit_blocks(unit, index, limit, after) for unit in list(replica.units)],
    }


async def _unit_blocks(unit: Unit, index: PrefixIndex, limit: int, after: int) -> dict[str, Any]:
    held: list[Block] = []
    for part in index.walk(unit.slot):
        held += part
        await asyncio.sleep(0)
    held.sort()
    first = bisect_right(held, after, key=lambda block: block[0])
    end = min(first + limit, len(held))
    while first < end < len(held) and held[end][0] == held[end - 1][0]:
        end += 1  # the next part begins behind a hash, so all of one stay together
    return {
        "unit": unit.unit_id,
        "trust": unit.trust.value,
        "blocks": len(held),
        "digest": await _digest(held),
        "listed": [[f"{block:016x}", tier, group] for block, tier, group in held[first:end]],
    }


async def _digest(held: list[Block]) -> str:
    """Return xxh64 over (hash, tier, group) of all blocks in order, as big-endian 8, 2 and 2 bytes."""
    digest = xxhash.xxh64()
    for number, (block, tier, group) in enumerate(held):
        digest.update(block.to_bytes(8, "big") + tier.to_bytes(2, "big") + group.to_bytes(2, "big"))
        if number % 20_000 == 0:
            await asyncio.sleep(0)
    return digest.hexdigest()
