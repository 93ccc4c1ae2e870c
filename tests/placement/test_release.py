"""Whatever happens to a request, what it counted for is given back exactly once."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from router.config_placement import PlacementConfig
from router.errors import WarmrouteError
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.replica import Unit
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placement, Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
NAMES = ("r0", "r1", "r2")
ENDS = {
    "answer": Outcome(200, None, 100, 0, 5, 0.1, 0.2),
    "engine error": Outcome(500, None, None, None, None, None, 0.2),
    "client error": Outcome(400, None, None, None, None, None, 0.2),
    "abort": Outcome(None, None, None, None, None, None, 0.2, aborted=True),
    "abort of a stream": Outcome(200, None, None, None, None, 0.1, 0.2, aborted=True),
    "timeout": Outcome(None, "upstream_timeout", None, None, None, None, 0.2),
    "broken": Outcome(200, "upstream_broken", None, None, None, 0.1, 0.2),
    "not connected": Outcome(None, "connect_error", None, None, None, None, 0.2),
}


class Life(RuleBasedStateMachine):
    """A router's placements, while replicas leave, come back under the same name, elsewhere, and change their trust."""

    running = Bundle("running")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.index = PrefixIndex()
        self.approximate = ApproximateMemory(self.index)
        self.fleet = Fleet(on_unit_withdrawn=self._withdrawn)
        self.expected = ExpectedBlocks()
        placement = PlacementConfig()
        rng = random.Random(1)
        self.placer = Placer(self.fleet, self.index, self.expected, self.approximate, placement, rng, lambda: 0.0)
        self.live: list[Placement] = []
        self.units: list[Unit] = []
        self.port = 8000
        for name in NAMES:
            self.join(name, Trust.EXACT)

    def _withdrawn(self, unit: Unit) -> None:
        self.index.clear(unit.slot)
        self.approximate.drop(unit.slot)

    @rule(name=st.sampled_from(NAMES), trust=st.sampled_from(list(Trust)))
    def join(self, name: str, trust: Trust) -> None:
        """It is announced, or announced again."""
        unit = UnitFacts(f"{name}/0", 0, SCHEME, trust, 64)
        facts = ReplicaFacts(name, f"http://{name}:{self.port}", "redis", (ServedModel("m", "m"),), (unit,))
        self.fleet.announce(facts, self.now_s)
        found = self.fleet.units[unit.unit_id]
        if not any(known is found for known in self.units):
            self.units.append(found)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        """It is gone; what runs there ends on its own."""
        self.fleet.withdraw(name)

    @rule(name=st.sampled_from(NAMES))
    def come_back_elsewhere(self, name: str) -> None:
        """Another process under the same name."""
        self.port += 1
        self.join(name, Trust.APPROXIMATE)

    @rule(
        target=running,
        tokens=st.integers(0, 200),
        first=st.integers(0, 2),
        stream=st.booleans(),
        tried=st.integers(0, 2),
    )
    def place(self, tokens: int, first: int, stream: bool, tried: int) -> Placement | None:
        """A request comes, perhaps for the second time."""
        prompt = Prompt(Kind.CHAT, "m", stream, list(range(first, first + tokens)), tokens)
        try:
            placement = self.placer.place(prompt, "q", self.now_s, NAMES[:tried])
        except WarmrouteError:
            return None
        self.live.append(placement)
        return placement

    @rule(placement=running)
    def first_token(self, placement: Placement | None) -> None:
        """Its answer begins; perhaps it was told before, or it ended."""
        if placement is not None:
            self.placer.first_token(placement, self.now_s)

    @rule(target=ended, placement=consumes(running), end=st.sampled_from(sorted(ENDS)))
    def finish(self, placement: Placement | None, end: str) -> Placement | None:
        """It ends in some way."""
        if placement is not None:
            self.placer.finish(placement, self.now_s, ENDS[end])
            self.live = [item for item in self.live if item is not placement]
        return placement

    @rule(placement=ended, end=st.sampled_from(sorted(ENDS)))
    def finish_again(self, placement: Placement | None, end: str) -> None:
        """Two things ended it at once."""
        if placement is not None:
            self.placer.finish(placement, self.now_s, ENDS[end])
            self.placer.first_token(placement, self.now_s)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now_s += seconds

    @invariant()
    def each_unit_counts_what_runs_there(self) -> None:
        """And units that left count for themselves alone, whoever bears their name now."""
        for unit in self.units:
            here = [item for item in self.live if item.unit is unit]
            assert unit.in_flight.requests == len(here)
            most = sum(item.reservation.uncached_tokens for item in here if not item.first_token_seen)
            assert 0.0 <= unit.in_flight.backlog_tokens(self.now_s) <= most

    def teardown(self) -> None:
        """Everything ends: nothing is left."""
        for placement in self.live:
            self.placer.finish(placement, self.now_s, ENDS["abort"])
        assert [unit.in_flight.requests for unit in self.units] == [0] * len(self.units)
        assert [unit.in_flight.backlog_tokens(self.now_s) for unit in self.units] == [0.0] * len(self.units)
        self.expected.settle(self.now_s + 60.0)
        assert len(self.expected) == 0


TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=60)
