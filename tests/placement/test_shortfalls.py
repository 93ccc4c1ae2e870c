"""Fewer tokens came from the cache than the unit announced: which blocks its agent is told of. Virtual time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from router.config_placement import PlacementConfig
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.vouching import Verdict
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.index.shortfalls import MAX_BLOCKS, MAX_WAITING, Shortfalls
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
PROMPT = Prompt(stream=False, token_ids=list(range(100)), tokens=100, model="tiny", kind=Kind.CHAT)
BLOCKS = chain(range(100), SCHEME)


class Core:
    """A router's core over one unit that holds the prompt's six blocks, of whose kind predictions are known to hold."""

    def __init__(self, vouched: bool = True) -> None:
        self.index, self.fleet = PrefixIndex(), Fleet()
        memory = ApproximateMemory(self.index)
        parts = (self.fleet, self.index, ExpectedBlocks(), memory, PlacementConfig(), random.Random(3), lambda: 1e9)
        self.placer = Placer(*parts)
        unit = UnitFacts("r0/0", 0, SCHEME, Trust.EXACT, 64)
        facts = ReplicaFacts("r0", "http://r0:8000", "redis", (ServedModel("tiny", "tiny"),), (unit,))
        self.fleet.announce(facts, 0.0)
        self.unit = self.fleet.units["r0/0"]
        self.index.store(self.unit.slot, BLOCKS)
        if vouched:
            record = self.placer.proving.vouching.record(self.unit, "tiny", Kind.CHAT)
            self.placer.proving.vouching.judge(
                self.unit, record, Verdict.GOOD, block=1, agreed_tokens=0, silent=False, equal_length=None
            )

    def serve(self, **changes: Any) -> list[Any]:
        """Serve the prompt; return what is to be told."""
        placement = self.placer.place(PROMPT, "q", 10.0)
        figures: dict[str, Any] = {"status": 200, "error": None, "prompt_tokens": 100, "completion_tokens": 1}
        outcome = Outcome(**{**figures, "cached_tokens": 96, "ttft_s": 0.1, "total_s": 0.2, **changes})
        self.placer.finish(placement, 12.0, outcome)
        return self.placer.shortfalls.take()


def test_what_was_missing_is_told_with_the_time_of_placement() -> None:
    """Of six believed blocks the engine found two: the other four, from where the prefix broke off."""
    [told] = Core().serve(cached_tokens=32)
    assert (told.unit_id, told.blocks, told.placed_s) == ("r0/0", tuple(BLOCKS[2:6]), 10.0)


def test_what_was_removed_meanwhile_is_not_told() -> None:
    """The engine's own removals came with the answer: nobody believes in those blocks any more."""
    core = Core()
    placement = core.placer.place(PROMPT, "q", 10.0)
    core.index.remove(core.unit.slot, BLOCKS[3:])
    figures: dict[str, Any] = {"status": 200, "error": None, "prompt_tokens": 100, "completion_tokens": 1}
    core.placer.finish(placement, 12.0, Outcome(**figures, cached_tokens=32, ttft_s=0.1, total_s=0.2))
    assert [told.blocks for told in core.placer.shortfalls.take()] == [tuple(BLOCKS[2:3])]


@pytest.mark.parametrize(
    "changes",
    [
        {"cached_tokens": 96},
        {"cached_tokens": 80 + 16},
        {"cached_tokens": None},
        {"cached_tokens": 0, "status": 500},
        {"cached_tokens": 0, "error": "upstream_broken"},
    ],
)
def test_nothing_is_told_where_nothing_is_missing_or_known(changes: dict[str, Any]) -> None:
    """As predicted, no figure, and answers that failed."""
    assert Core().serve(**changes) == []


def test_a_kind_whose_predictions_are_not_known_to_hold_tells_nothing() -> None:
    """The engine may have rendered another prompt: its blocks are not missing."""
    assert Core(vouched=False).serve(cached_tokens=0) == []


def test_what_waits_is_bounded() -> None:
    """Blocks of one request, and requests."""
    waiting = Shortfalls()
    for number in range(MAX_WAITING + 5):
        waiting.add(f"r{number}/0", range(1000), 0.0)
    waiting.add("r0/0", [], 0.0)
    told = waiting.take()
    assert (len(told), len(told[0].blocks)) == (MAX_WAITING, MAX_BLOCKS)
    assert waiting.take() == []
