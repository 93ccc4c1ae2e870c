"""Dynamo's RadixTree in `make bench-index`, through its Python binding. Run by an interpreter that has
`ai-dynamo-runtime`; prints one line of JSON.
"""

from __future__ import annotations

import gc
import json
import time
from array import array
from importlib.metadata import version

from dynamo._core import RadixTree  # type: ignore[import-not-found, unused-ignore]  # in its own environment

from loadtest.bench.index_data import EVENT_BLOCKS, asked_chains, chains, events, median_us, memory_bytes, size


def stored(number: int, parent: int | None, blocks: array[int]) -> bytes:
    """Return one event as its binding takes it; its hashes of tokens and of sequences are the same here."""
    named = [{"block_hash": block, "tokens_hash": block} for block in blocks]
    data = {"stored": {"parent_hash": parent, "blocks": named}}
    return json.dumps({"event_id": number, "dp_rank": 0, "data": data}).encode()


def main() -> None:
    """Fill, look up, print."""
    asked_for = size()
    tree, number, spent_s = RadixTree(), 0, 0.0
    gc.collect()
    before = memory_bytes()
    for chain_number, chain in chains(asked_for.blocks):
        made, parent = [], None
        for part in events(chain):
            made.append(stored(number, parent, part))
            number, parent = number + 1, part[-1]
        begun_s = time.process_time()
        for event in made:
            tree.apply_event(chain_number % asked_for.units, event)
        spent_s += time.process_time() - begun_s
    used = memory_bytes() - before
    asked = asked_chains(asked_for.blocks)
    found = set(tree.find_matches(asked[0]).scores.values())
    if found != {len(asked[0])}:
        raise SystemExit(f"a chain that is there matched {found}, not {len(asked[0])}")
    figures = {
        "name": f"Dynamo RadixTree {version('ai-dynamo-runtime')}",
        "lookup_us": median_us(tree.find_matches, asked),
        "bytes_per_block": used / asked_for.blocks,
        "events_per_s": number * EVENT_BLOCKS / spent_s,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
