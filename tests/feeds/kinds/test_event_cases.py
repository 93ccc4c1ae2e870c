"""Faults of other routers with engines' events, from the engine's bytes to the choice: EVT-01, EVT-03, EVT-08, EVT-09.

The adapter, counting, wire format, Valkey, feed, index and placement are those of agents and routers in operation.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from router.config import PlacementConfig
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.candidate import Candidate

TOKENS = list(range(100, 229))
"""Eight blocks of 16 tokens and one token more."""
P = chain(TOKENS, Scheme(HashAlgorithm.SHA256_CBOR, 16))


class Choosing:
    """A router's feed with placement over it."""

    def __init__(self, running: Any) -> None:
        self.feeds = running
        memory, config = ApproximateMemory(running.index), PlacementConfig()
        self._placer = Placer(
            running.fleet, running.index, ExpectedBlocks(), memory, config, random.Random(1), lambda: 1e9
        )

    def choose(self) -> tuple[str, dict[str, Candidate]]:
        """Where the prompt would go, and all candidates by unit."""
        prompt = Prompt(stream=False, token_ids=TOKENS, tokens=len(TOKENS), model="tiny", kind=Kind.COMPLETION)
        decision = self._placer.explain(prompt, 1e6)
        return decision.winner, {each.unit_id: each for each in decision.candidates}

    def matched(self) -> dict[str, int]:
        """Tokens that each unit is credited with."""
        return {unit: each.matched_tokens for unit, each in self.choose()[1].items()}


@pytest.fixture
async def cases(agents: Any, engines: Any, run_feeds: Any, redis_url: str, eventually: Any) -> Any:
    """`await cases("r0/0", ...)`: units' agents and the choosing router, once it follows them all."""

    async def start(*units: str) -> tuple[Choosing, list[Any]]:
        urls = {name: (await engines()).url for name in {unit.partition("/")[0] for unit in units}}
        writing = await agents(redis_url, list(units), engines=[urls[unit.partition("/")[0]] for unit in units])
        feeds = run_feeds(redis=redis_url)
        await eventually(lambda: feeds.value("warmroute_feed_units", state="synced") == len(units))
        return Choosing(feeds), writing

    return start


def stored(count: int = 8, **changes: Any) -> dict[str, Any]:
    """The prompt's first blocks, as an event."""
    whole = {
        "type": "BlockStored",
        "block_hashes": P[:count],
        "parent_block_hash": None,
        "token_ids": TOKENS[: 16 * count],
        "block_size": 16,
    }
    return {**whole, **changes}


async def test_maps_and_arrays_of_every_length_are_read(cases: Any, eventually: Any) -> None:
    """EVT-01: arrays with 4, 7 and 10 fields, maps in any order, both in one batch, a batch without its rank."""
    router, [r0] = await cases("r0/0")
    full = [None, "GPU", None, None, 0, "full_attention"]
    names = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size")
    blocks: list[list[Any]] = [
        ["BlockStored", P[n : n + 1], P[n - 1] if n else None, TOKENS[16 * n : 16 * n + 16], 16] for n in range(8)
    ]
    backwards = dict(reversed(list(zip(names, blocks[6], strict=True))))
    r0.say(blocks[0], [*blocks[1], *full[:3]], [*blocks[2], *full])
    r0.say(dict(zip(names, blocks[3], strict=True)))
    r0.say(blocks[4], backwards, [*blocks[5], *full[:1]], with_rank=False)
    r0.say(blocks[7])
    await eventually(lambda: router.matched() == {"r0/0": 128})


async def test_a_cleared_cache_is_empty_and_what_comes_behind_it_counts(cases: Any, eventually: Any) -> None:
    """EVT-03: cleared and one block stored in one batch: that block is all, and the other replica wins."""
    router, [r0, r1] = await cases("r0/0", "r1/0")
    r0.say(stored(8))
    r1.say(stored(3))
    await eventually(lambda: router.matched() == {"r0/0": 128, "r1/0": 48})
    assert router.choose()[0] == "r0/0"
    r0.say(["AllBlocksCleared"], stored(1))
    await eventually(lambda: router.matched() == {"r0/0": 16, "r1/0": 48})
    assert router.choose()[0] == "r1/0"


async def test_ranks_are_caches_and_sequences_of_their_own(cases: Any, eventually: Any) -> None:
    """EVT-08: three ranks of one replica, each numbered from 0; clearing one leaves the others'."""
    router, [_, one, two] = await cases("r0/0", "r0/1", "r0/2")
    two.say(stored(8))
    one.say(stored(2))
    await eventually(lambda: router.matched() == {"r0/0": 0, "r0/1": 32, "r0/2": 128})
    assert router.choose()[0] == "r0/2"
    one.say({"type": "AllBlocksCleared"})
    await eventually(lambda: router.matched() == {"r0/0": 0, "r0/1": 0, "r0/2": 128})
    assert [each.unit.tally.gaps + each.unit.tally.restarts for each in (one, two)] == [0, 0]


async def test_tiers_windows_and_sparse_stores_are_credited_for_what_they_are(cases: Any, eventually: Any) -> None:
    """EVT-09: the CPU's blocks are worth a share, a window alone is no prefix, one hash of two blocks is no second."""
    router, [r0, r1, r2, r3] = await cases("r0/0", "r1/0", "r2/0", "r3/0")
    r0.say(stored(8, medium="CPU"))
    r1.say(stored(6, medium="GPU"))
    r2.say(stored(8, group_idx=1, kv_cache_spec_kind="sliding_window"))
    r3.say(stored(2, block_hashes=P[1:2]))
    await eventually(lambda: router.matched() == {"r0/0": 128, "r1/0": 96, "r2/0": 0, "r3/0": 0})
    winner, candidates = router.choose()
    assert candidates["r0/0"].cpu_tokens == 128
    assert winner == "r0/0"  # 0.8 x 128 tokens saved, against 96
    r0.say({"type": "BlockRemoved", "block_hashes": P[4:], "medium": "CPU"})
    await eventually(lambda: router.matched()["r0/0"] == 64)
    r1.say(stored(4, medium="a medium of tomorrow"))
    assert router.choose()[0] == "r1/0"
    r0.say(stored(4, medium="GPU"))
    await eventually(lambda: router.choose()[1]["r0/0"].cpu_tokens == 0)
    r0.say({"type": "BlockRemoved", "block_hashes": P[:4], "medium": "GPU"})
    await eventually(lambda: router.choose()[1]["r0/0"].cpu_tokens == 64)
    assert router.matched()["r0/0"] == 64
