"""Placements as the placer makes them, for tests of what is recorded."""

from __future__ import annotations

import random
from typing import Any

from router.config_placement import PlacementConfig
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placement, Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

BLOCK = 16
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, BLOCK)


def outcome(cached: int | None, prompt_tokens: int | None = None, status: int | None = 200, **changes: Any) -> Outcome:
    """An end of a request."""
    values = {"error": None, "completion_tokens": 3, "ttft_s": 0.1, "total_s": 0.2, **changes}
    return Outcome(status=status, cached_tokens=cached, prompt_tokens=prompt_tokens, **values)


def prompt(tokens: int = 161, first: int = 0, **changes: Any) -> Prompt:
    """A chat of so many tokens; `first` tells it from another."""
    values = {"kind": Kind.CHAT, "model": "tiny", "stream": True, "token_ids": [first, *range(1, tokens)]}
    return Prompt(**{**values, "tokens": tokens, **changes})


class SmallFleet:
    """Idle replicas with a placer over them, and an index to fill."""

    def __init__(self, replicas: int = 2, trust: Trust = Trust.EXACT, **config: Any) -> None:
        self.scheme = SCHEME
        self.index = PrefixIndex()
        self.fleet = Fleet()
        approximate = ApproximateMemory(self.index)
        settings = PlacementConfig(**config)
        rng = random.Random(5)
        self.placer = Placer(self.fleet, self.index, ExpectedBlocks(), approximate, settings, rng, lambda: 1e9)
        for number in range(replicas):
            unit = UnitFacts(f"r{number}/0", 0, SCHEME, trust, 64)
            models = (ServedModel("tiny", "tiny"),)
            self.fleet.announce(ReplicaFacts(f"r{number}", f"http://r{number}:1", "redis", models, (unit,)), 0.0)

    def holds(self, name: str, one: Prompt, blocks: int) -> None:
        """A replica holds the first blocks of a prompt."""
        self.index.store(self.fleet.units[f"{name}/0"].slot, one.chain(SCHEME, None)[:blocks])

    def place(self, one: Prompt, request_id: str = "q", now_s: float = 0.0, tried: tuple[str, ...] = ()) -> Placement:
        """Place a prompt."""
        return self.placer.place(one, request_id, now_s, tried)
