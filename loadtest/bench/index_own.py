"""Warmroute's index and placement in `make bench-index`: native, or pure Python under WARMROUTE_NATIVE=no. Prints one
line of JSON.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections import deque

from loadtest.bench.index_data import CHAIN_BLOCKS, asked_chains, chains, events, median_us, memory_bytes, size
from router.config_placement import PlacementConfig
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.vouching import Vouching
from router.index.announced import AnnouncedBlocks
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.holders import FASTEST, NATIVE
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.kv.wire import BlocksBatch, Change, decode, encode
from router.placement import Placement, Placer
from router.proving import Proving
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
MODEL = "m"
LOAD = 4
"""Requests in flight at each replica while decisions are measured: all have a backlog, and blocks that are expected."""
SHORT_BLOCKS, SHORT_UNITS = 4, 4


class Router:
    """What of a router an index and a decision need, all of it real."""

    def __init__(self, units: int) -> None:
        self.index = PrefixIndex()
        self.announced = AnnouncedBlocks()
        fleet = Fleet()
        self.placer = Placer(
            fleet,
            self.index,
            ExpectedBlocks(),
            ApproximateMemory(self.index),
            PlacementConfig.model_validate({}),
            random.Random(1),
            time.time,
            Proving(self.index, self.announced, Vouching()),
        )
        for number in range(units):
            name = f"replica-{number}"
            unit = UnitFacts(name, 0, SCHEME, Trust.EXACT, 1 << 20)
            facts = ReplicaFacts(
                name, f"http://127.0.0.1:{8000 + number}", "redis", (ServedModel(MODEL, MODEL),), (unit,)
            )
            fleet.announce(facts, 0.0)
            self.announced.heard(number, 0.0)

    def apply(self, slot: int, entry: bytes) -> None:
        """Apply one entry of a lane, as the feed does."""
        batch = decode(entry)
        if isinstance(batch, BlocksBatch):
            for change in batch.changes:
                self.announced.stored(slot, change.hashes)
                self.index.store(slot, change.hashes, change.tier, change.group)


def fill(router: Router, blocks: int, units: int) -> float:
    """Put all chains in, each at one unit; return the CPU seconds from the lane's bytes to the index."""
    spent_s, sequence = 0.0, 0
    for number, chain in chains(blocks):
        made = []
        for part in events(chain):
            sequence += 1
            made.append(encode(BlocksBatch("unit", 1, sequence, (Change("stored", hashes=part),))))
        begun_s = time.process_time()
        for entry in made:
            router.apply(number % units, entry)
        spent_s += time.process_time() - begun_s
    return spent_s


def prompt_of(chain: list[int]) -> Prompt:
    """Return a prompt with this chain and half a block more."""
    prompt = Prompt(Kind.CHAT, MODEL, True, (), len(chain) * SCHEME.block_size + SCHEME.block_size // 2)
    prompt.chains[(SCHEME, None, None, ())] = chain
    return prompt


def decisions(router: Router, units: int, asked: list[list[int]], rounds: int) -> tuple[float, float]:
    """Return the median CPU microseconds of a decision (match, filters, score, pick, reserve), and of all that is done
    for a request: decision, first token, end."""
    in_flight: deque[Placement] = deque()
    placer, now_s = router.placer, 1.0
    deciding, whole = [], []
    for number in range(rounds):
        prompt = prompt_of(asked[number % len(asked)])
        now_s += 0.001
        begun = time.thread_time_ns()
        placement = placer.place(prompt, "request", now_s)
        decided = time.thread_time_ns()
        in_flight.append(placement)
        if len(in_flight) <= LOAD * units:
            continue
        first = in_flight.popleft()
        matched, tokens = first.decision.matched_tokens, first.decision.prompt_tokens
        outcome = Outcome(200, None, tokens, matched, 10, 0.1, 0.2)
        ending = time.thread_time_ns()
        placer.first_token(first, now_s)
        placer.finish(first, now_s, outcome)
        deciding.append(decided - begun)
        whole.append(decided - begun + time.thread_time_ns() - ending)
    return statistics.median(deciding) / 1_000, statistics.median(whole) / 1_000


def main() -> None:
    """Fill, look up, decide, print."""
    asked_for = size()
    router = Router(asked_for.units)
    gc.collect()
    before = memory_bytes()
    spent_s = fill(router, asked_for.blocks, asked_for.units)
    used = memory_bytes() - before
    asked = asked_chains(asked_for.blocks)
    view = router.index.view(range(asked_for.units))
    if sum(router.index.depths(asked[0], view)[0]) != CHAIN_BLOCKS:
        raise SystemExit("a chain that is there did not match")
    gc.collect()
    gc.freeze()
    lookup_us = median_us(lambda chain: router.index.depths(chain, view), asked)
    decision_us, _ = decisions(router, asked_for.units, asked, LOAD * asked_for.units + 2_000)
    short = Router(SHORT_UNITS)
    few = [list(chain)[:SHORT_BLOCKS] for _, chain in chains(500 * CHAIN_BLOCKS)]
    for number, chain in enumerate(few):
        short.index.store(number % SHORT_UNITS, chain)
    short_us, short_whole_us = decisions(short, SHORT_UNITS, few, 20_000)
    figures = {
        "name": "Warmroute, native" if FASTEST is NATIVE else "Warmroute, pure Python",
        "lookup_us": lookup_us,
        "bytes_per_block": used / asked_for.blocks,
        "events_per_s": asked_for.blocks / spent_s,
        "decision_us": decision_us,
        "short_us": short_us,
        "short_whole_us": short_whole_us,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
