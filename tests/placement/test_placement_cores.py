"""Placement over the native cores and over pure Python: the same events and requests make the same Decisions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import weighing
from router.config_placement import PlacementConfig
from router.fleet.facts import EngineLoad, ReplicaFacts, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.replica import Unit
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.holders import NATIVE, PYTHON, Core
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placement, Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native core was not built")
SCHEMES = (Scheme(HashAlgorithm.SHA256_CBOR, 16), Scheme(HashAlgorithm.SHA256_CBOR, 32))
Units = tuple[tuple[str, Scheme, Trust], ...]
UNITS: Units = (
    ("a", SCHEMES[0], Trust.EXACT),
    ("b", SCHEMES[0], Trust.MAPPED),
    ("c", SCHEMES[0], Trust.APPROXIMATE),
    ("d", SCHEMES[1], Trust.EXACT),
    ("e", SCHEMES[0], Trust.NONE),
)
ALIKE: Units = tuple((name, SCHEMES[0], trust) for name, trust in zip("abcde", Trust, strict=False))
SAMPLED: Units = tuple((name, SCHEMES[0], Trust.APPROXIMATE) for name in "abc")


def chain_of(seed: int, length: int, scheme: Scheme) -> list[int]:
    """Chains of two seeds share their first forty blocks."""
    return [scheme.block_size << 40 | (place if place < 40 else place + 1_000 * (seed + 1)) for place in range(length)]


class Router:
    """A fleet, an index, a placer on one core.

    Attributes:
        at_once: Decisions whose candidates were weighed in one call.
    """

    def __init__(self, core: Core, units: Units = UNITS, config: PlacementConfig | None = None) -> None:
        self.units, self.at_once = units, 0
        self.index, self.expected = PrefixIndex(core), ExpectedBlocks(core)
        self.fleet = Fleet(on_unit_withdrawn=self._withdrawn)
        self.placer = Placer(
            self.fleet,
            self.index,
            self.expected,
            ApproximateMemory(self.index),
            config or PlacementConfig(),
            Random(5),
            lambda: 0.0,
        )
        self.placed: list[Placement] = []
        self.placer._surveyor.weighs = core is NATIVE
        for number in range(len(units)):
            self.joined(number)

    def _withdrawn(self, unit: Unit) -> None:
        self.expected.forget(unit.slot)
        self.index.clear(unit.slot)

    def joined(self, number: int, now_s: float = 0.0) -> None:
        name, scheme, trust = self.units[number]
        unit = UnitFacts(name, 0, scheme, trust, 4_000)
        self.fleet.announce(ReplicaFacts(name, f"http://{name}:80", "redis", (), (unit,)), now_s)

    def step(self, name: str, number: int, seed: int, length: int, at: int, now_s: float) -> dict[str, Any] | None:
        """Do one thing; return the Decision where there is one."""
        unit = self.fleet.unit(self.units[number][0])
        if name == "join":
            self.joined(number, now_s)
        elif name == "leave" and len(self.fleet.replicas) > 1:
            self.fleet.withdraw(self.units[number][0])
        elif name == "load" and unit is not None:
            self.fleet.report_load(unit.unit_id, EngineLoad(at % 9, seed, at / 150, now_s - at % 7))
            unit.peer_requests, unit.peer_tokens = at % 4, at * 3.7
            unit.in_flight.others_wait_since(peer_head_s=now_s - 1 if at % 3 else float("inf"))
        elif name in ("store", "remove") and unit is not None and unit.scheme is not None:
            blocks = chain_of(seed, length, unit.scheme)[at % length :]
            (self.index.store if name == "store" else self.index.remove)(unit.slot, blocks, tier=at % 3)
        elif name == "place":
            prompt = Prompt(Kind.CHAT, None, bool(at % 2), (), length * 16 + at % 16)
            for scheme in SCHEMES:
                prompt.chains[(scheme, None, None, ())] = chain_of(seed, prompt.tokens // scheme.block_size, scheme)
            self.placed.append(self.placer.place(prompt, "q", now_s))
            self.at_once += self.placed[-1].decision.candidates._packed is not None  # type: ignore[attr-defined]
            return {**self.placed[-1].decision.to_dict(), "longest": self.placed[-1].decision.available_tokens}
        elif name in ("first", "finish") and self.placed:
            placement = self.placed.pop(at % len(self.placed))
            if name == "first":
                self.placer.first_token(placement, now_s)
            self.placer.finish(placement, now_s, Outcome(200 if at % 3 else None, None, 1, 1, 1, 0.1, 0.2))
        return None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "remove", "place", "place", "place", "first", "finish", "join", "leave"]),
        st.integers(0, len(UNITS) - 1),
        st.integers(0, 2),
        st.integers(1, 150),
        st.integers(0, 150),
    ),
    max_size=40,
)


@given(STEPS)
def test_decisions_are_equal_term_by_term(steps: list[tuple[str, int, int, int, int]]) -> None:
    """With several schemes, tiers and kinds of trust, while replicas come and go."""
    assert NATIVE is not None
    twin, native = Router(PYTHON), Router(NATIVE)
    for turn, step in enumerate(steps):
        assert twin.step(*step, now_s=turn * 0.05) == native.step(*step, now_s=turn * 0.05)
    assert len(twin.expected) == len(native.expected)


ALIKE_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "remove", "place", "place", "place", "first", "finish", "join", "leave", "load"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(1, 150),
        st.integers(0, 150),
    ),
    max_size=50,
)


@pytest.mark.skipif(weighing.weigh is weighing._nothing, reason="the native core was not built")
@pytest.mark.parametrize("units", [ALIKE, SAMPLED], ids=["trusts", "sampled"])
@given(ALIKE_STEPS, st.sampled_from([0.0, 64.0]), st.sampled_from([0.0, 0.05]))
def test_what_is_weighed_at_once_is_weighed_the_same(
    units: Units, steps: list[tuple[str, int, int, int, int]], tie_tokens: float, held_share: float
) -> None:
    """Of one scheme, as nearly every fleet is: with tiers, every kind of trust, ramps, engines' and others' load."""
    config = PlacementConfig.model_validate({"tie_tokens": tie_tokens, "weights": {"held_share": held_share}})
    assert NATIVE is not None
    twin, native = Router(PYTHON, units, config), Router(NATIVE, units, config)
    for turn, step in enumerate(steps):
        assert twin.step(*step, now_s=turn * 0.7) == native.step(*step, now_s=turn * 0.7)
    assert not twin.at_once
    assert native.at_once == sum(step[0] == "place" for step in steps)
