"""Placement: the index, the ledger and the rule together, in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from router.config_placement import PlacementConfig
from router.errors import ModelNotFoundError, NoReplicaError, NoRoomError
from router.fleet.facts import EngineLoad, ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.extra_keys import Lora
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


class House:
    """A fleet of idle replicas r0, r1, ... with a placer over it."""

    def __init__(
        self, replicas: int = 4, trust: Trust = Trust.EXACT, schemes: dict[str, Scheme] | None = None, **config: Any
    ):
        self.index = PrefixIndex()
        self.approximate = ApproximateMemory(self.index)
        self.fleet = Fleet(on_unit_withdrawn=self._withdrawn)
        self.expected = ExpectedBlocks()
        self.trust, self.schemes = trust, schemes or {}
        for number in range(replicas):
            self.join(f"r{number}")
        placement = PlacementConfig(**config)
        self.placer = Placer(
            self.fleet, self.index, self.expected, self.approximate, placement, random.Random(5), lambda: 1e9
        )

    def join(self, name: str, port: int = 8000) -> None:
        models = (ServedModel("tiny", "tiny"), ServedModel("ad", f"/adapters/{name}", parent="tiny"))
        unit = UnitFacts(f"{name}/0", 0, self.schemes.get(name, SCHEME), self.trust, 64)
        self.fleet.announce(ReplicaFacts(name, f"http://{name}:{port}", "redis", models, (unit,)), 0.0)

    def _withdrawn(self, unit) -> None:
        self.index.clear(unit.slot)
        self.approximate.drop(unit.slot)

    def holds(self, name: str, prompt: Prompt, blocks: int, lora: Lora | None = None) -> None:
        unit = self.fleet.units[f"{name}/0"]
        self.index.store(unit.slot, prompt.chain(unit.scheme, lora)[:blocks])


def prompt(tokens: int = 160, first: int = 0, **changes: Any) -> Prompt:
    """A chat of so many tokens."""
    changes.setdefault("model", "tiny")
    changes.setdefault("stream", True)
    return Prompt(kind=Kind.CHAT, token_ids=list(range(first, first + tokens)), tokens=tokens, **changes)


def done(**changes: Any) -> Outcome:
    """A good end."""
    figures = {"status": 200, "error": None, "prompt_tokens": 160, "cached_tokens": 0, "completion_tokens": 1}
    return Outcome(**{**figures, "ttft_s": 0.1, "total_s": 0.2, **changes})


def test_a_prompt_goes_to_the_replica_that_holds_most_of_it() -> None:
    """All else equal, the longest prefix is the least to compute."""
    house = House()
    house.holds("r1", prompt(), 3)
    house.holds("r2", prompt(), 6)
    placement = house.placer.place(prompt(), "q", 0.0)
    assert (placement.replica.replica_id, placement.decision.matched_tokens) == ("r2", 96)


def test_the_last_token_is_always_computed() -> None:
    """160 tokens held whole still match 144: an engine reads at most prompt - 1 tokens."""
    house = House()
    house.holds("r1", prompt(), 10)
    assert house.placer.place(prompt(), "q", 0.0).decision.matched_tokens == 144


def test_matches_are_compared_in_tokens_not_in_blocks() -> None:
    """One block of 64 tokens is more than three of 16 (HASH-03)."""
    wide = Scheme(HashAlgorithm.SHA256_CBOR, 64)
    house = House(replicas=2, schemes={"r0": wide})
    asked = prompt(200)
    house.holds("r0", asked, 1)
    house.holds("r1", asked, 3)
    placement = house.placer.place(asked, "q", 0.0)
    assert (placement.replica.replica_id, placement.decision.matched_tokens) == ("r0", 64)


def test_a_prompt_shorter_than_a_block_is_placed_by_load() -> None:
    """No blocks, no error."""
    house = House()
    house.placer.place(prompt(), "busy", 0.0)
    placement = house.placer.place(prompt(15), "q", 0.0)
    assert placement.decision.matched_tokens == 0


def test_an_adapter_s_path_differs_between_replicas() -> None:
    """The chain of an adapter is computed for each root among the candidates."""
    house = House()
    asked = prompt(model="ad")
    house.holds("r3", asked, 5, Lora("ad", "/adapters/r3"))
    house.holds("r2", asked, 8, Lora("ad", "/adapters/elsewhere"))
    placement = house.placer.place(asked, "q", 0.0)
    assert (placement.replica.replica_id, placement.decision.matched_tokens) == ("r3", 80)


def test_equal_cold_prompts_stay_together_until_waiting_costs_more() -> None:
    """The second of a burst sees what the first will leave, and does not compute it anew."""
    house = House()
    first = house.placer.place(prompt(), "a", 0.0)
    second = house.placer.place(prompt(), "b", 0.0)
    assert second.replica is first.replica
    assert (second.decision.matched_tokens, second.decision.expected_tokens) == (0, 144)


def test_expectations_end_after_the_first_token_and_the_event_lag() -> None:
    """From then on only what the engine reported counts."""
    house = House(event_lag_s=0.2)
    first = house.placer.place(prompt(), "a", 0.0)
    house.placer.first_token(first, 1.0)
    assert house.placer.explain(prompt(), 1.1).expected_tokens == 144
    assert house.placer.explain(prompt(), 1.3).expected_tokens == 0


def test_a_request_that_failed_leaves_no_expectation() -> None:
    """Nothing was computed."""
    house = House()
    first = house.placer.place(prompt(), "a", 0.0)
    house.placer.finish(first, 0.1, done(status=None, error="connect_failed"))
    assert len(house.expected) == 0
    assert house.placer.explain(prompt(), 0.2).expected_tokens == 0


@pytest.mark.parametrize("outcome", [done(), done(status=500), done(status=None, error="x"), done(aborted=True)])
def test_whatever_the_end_the_load_is_given_back_once(outcome: Outcome) -> None:
    """In flight is zero afterwards, and stays zero when the end is told twice."""
    house = House(replicas=1)
    placement = house.placer.place(prompt(), "a", 0.0)
    assert placement.unit.in_flight.requests == 1
    house.placer.finish(placement, 1.0, outcome)
    house.placer.finish(placement, 1.0, outcome)
    assert (placement.unit.in_flight.requests, placement.unit.in_flight.backlog_tokens(1.0)) == (0, 0)


def test_old_requests_of_a_replica_that_came_back_do_not_touch_its_count() -> None:
    """Ten old requests end after the replica left and came back under its name (RTE-03)."""
    house = House(replicas=1)
    old = [house.placer.place(prompt(), f"old{number}", 0.0) for number in range(10)]
    house.fleet.withdraw("r0")
    house.join("r0", port=8001)
    new = [house.placer.place(prompt(), f"new{number}", 1.0) for number in range(2)]
    for placement in old:
        house.placer.first_token(placement, 2.0)
        house.placer.finish(placement, 2.0, done())
    unit = house.fleet.units["r0/0"]
    assert unit.in_flight.requests == 2
    for placement in new:
        house.placer.finish(placement, 3.0, done())
    assert unit.in_flight.requests == 0
    assert house.index.blocks_of(unit.slot) == 0


def test_approximate_replicas_are_remembered_by_what_was_sent() -> None:
    """Without events the router's own memory makes the second request follow the first."""
    house = House(trust=Trust.APPROXIMATE)
    first = house.placer.place(prompt(), "a", 0.0)
    house.placer.first_token(first, 1.0)
    house.placer.finish(first, 2.0, done())
    second = house.placer.place(prompt(), "b", 9.0)
    assert second.replica is first.replica
    assert (second.decision.matched_tokens, second.decision.trust) == (144, "approximate")


def test_replicas_without_a_prefix_cache_match_nothing() -> None:
    """Trust NONE: placed by load alone."""
    house = House(replicas=1, trust=Trust.NONE)
    house.holds("r0", prompt(), 10)
    placement = house.placer.place(prompt(), "q", 0.0)
    assert (placement.decision.matched_tokens, placement.expected) == (0, None)


def test_a_request_that_reads_nothing_is_placed_by_load_and_remembered_as_a_store() -> None:
    """With prompt logprobs the engine recomputes everything, and keeps the blocks."""
    house = House()
    house.holds("r1", prompt(), 10)
    placement = house.placer.place(prompt(reads_cache=False), "q", 0.0)
    assert placement.decision.matched_tokens == 0
    follower = house.placer.explain(prompt(), 0.1)
    assert max(item.expected_tokens for item in follower.candidates) == 144


def test_tried_and_unready_replicas_are_left_out_and_named() -> None:
    """The Decision says which filter removed which replica."""
    house = House()
    house.fleet.mark_draining("r0")
    house.fleet.mark_down("r1", "health probe failed")
    placement = house.placer.place(prompt(), "q", 0.0, excluded={"r2"})
    assert placement.replica.replica_id == "r3"
    assert placement.decision.removed == {"r0": "draining", "r1": "down", "r2": "tried"}


def test_nobody_ready_is_not_the_same_as_nobody_serves_it() -> None:
    """503 with a reason against 404."""
    house = House(replicas=1)
    house.fleet.mark_down("r0", "health probe failed")
    with pytest.raises(NoReplicaError, match="down"):
        house.placer.place(prompt(), "q", 0.0)
    with pytest.raises(ModelNotFoundError, match="'gpt-9' does not exist"):
        house.placer.place(prompt(model="gpt-9"), "q", 0.0)


def test_a_request_without_a_model_may_go_anywhere() -> None:
    """The engine takes its default model then."""
    assert House().placer.place(prompt(model=None), "q", 0.0).replica is not None


def test_explaining_reserves_nothing() -> None:
    """However often it is asked, nothing is in flight."""
    house = House()
    for _ in range(5):
        house.placer.explain(prompt(), 0.0)
    assert sum(unit.in_flight.requests for unit in house.fleet.units.values()) == 0
    assert len(house.expected) == 0


def test_four_idle_replicas_share_prompts_that_nobody_knows() -> None:
    """400 different prompts, one at a time: each replica gets 60 to 140 (RTE-04)."""
    house, counts = House(), Counter()
    for number in range(400):
        placement = house.placer.place(prompt(64, first=number * 1_000), f"q{number}", float(number))
        counts[placement.replica.replica_id] += 1
        house.placer.finish(placement, number + 0.5, done())
    assert len(counts) == 4
    assert all(60 <= count <= 140 for count in counts.values()), counts


def test_the_hot_holder_of_a_system_prompt_is_relieved() -> None:
    """r0 holds all of a 1,024-token prompt and has 50 in flight; idle ones take over (RTE-06)."""
    house = House()
    house.holds("r0", prompt(1_024), 64)
    holder = house.fleet.units["r0/0"].in_flight
    for _ in range(50):
        holder.reserve(200, 0.0)
    counts = Counter(
        house.placer.place(prompt(1_040), f"q{number}", 0.05 * number).replica.replica_id for number in range(100)
    )
    assert counts["r0"] < 60
    assert sum(counts[name] for name in ("r1", "r2", "r3")) > 40


def test_a_request_without_a_model_does_not_look_at_the_fleet_anew() -> None:
    """Clients may leave the model out; that must not make each of their requests as dear as a change of the fleet."""
    house = House()
    house.placer.explain(prompt(model=None), 0.0)
    surveyor = house.placer._surveyor
    kept = surveyor._views[None]
    house.placer.explain(prompt(model=None), 1.0)
    assert surveyor._views[None] is kept


def test_models_that_the_same_units_serve_share_a_ring() -> None:
    """Until one of them is served by others."""
    house = House()
    views = house.placer._surveyor._views
    house.placer.explain(prompt(), 0.0)
    house.placer.explain(prompt(model="ad"), 0.0)
    assert views["tiny"].ring is views["ad"].ring
    models = (ServedModel("tiny", "tiny"),)
    unit = UnitFacts("r9/0", 0, SCHEME, Trust.EXACT, 64)
    house.fleet.announce(ReplicaFacts("r9", "http://r9:8000", "redis", models, (unit,)), 1.0)
    house.placer.explain(prompt(model="ad"), 1.0)
    house.placer.explain(prompt(), 1.0)
    assert "r9/0" in views["tiny"].ring.names
    assert "r9/0" not in views["ad"].ring.names


def test_names_that_clients_make_up_do_not_grow_the_views() -> None:
    """Replicas that do not tell what they serve take any name; what is kept of names is bounded."""
    house = House(replicas=0)
    unit = UnitFacts("r0/0", 0, SCHEME, Trust.APPROXIMATE, 64)
    house.fleet.announce(ReplicaFacts("r0", "http://r0:8000", "static", (), (unit,)), 0.0)
    for number in range(1_000):
        house.placer.explain(prompt(model=f"made-up-{number}"), 0.0)
    assert len(house.placer._surveyor._views) <= 256


def test_load_that_others_put_on_an_engine_counts() -> None:
    """r0 holds the prompt and says that it runs 80 requests, none of which this router sent: an idle one takes it."""
    house = House()
    house.holds("r0", prompt(1_024), 64)
    house.fleet.report_load("r0/0", EngineLoad(running=70, waiting=10, kv_usage=0.9, at_s=0.0))
    assert house.placer.explain(prompt(1_040), 1.0).winner != "r0/0"
    assert house.placer.explain(prompt(1_040), 60.0).winner == "r0/0"


def test_an_ejected_fleet_is_better_than_none() -> None:
    """An ejection says that others are better; without others it says nothing."""
    house = House(replicas=2)
    for name in ("r0", "r1"):
        for _ in range(3):
            house.fleet.failed(name, 0.0)
    assert house.placer.explain(prompt(), 1.0).winner in ("r0/0", "r1/0")
    house.fleet.mark_down("r0", "probes fail")
    assert house.placer.explain(prompt(), 1.0).winner == "r1/0"


def test_a_full_replica_is_left_out_and_full_ones_are_told_apart_from_none() -> None:
    """`limits.max_in_flight`: whoever finds no room may wait for it."""
    house = House(replicas=2)
    house.fleet.max_in_flight = 1
    house.holds("r0", prompt(), 5)
    first, second = (house.placer.place(prompt(), name, 0.0) for name in "ab")
    assert (first.replica.replica_id, second.replica.replica_id) == ("r0", "r1")
    assert second.decision.removed == {"r0": "full"}
    with pytest.raises(NoRoomError):
        house.placer.place(prompt(), "c", 0.0)
    house.placer.finish(first, 1.0, done())
    assert house.placer.place(prompt(), "d", 1.0).replica.replica_id == "r0"


def test_an_ejected_replica_is_not_taken_while_others_are_only_full() -> None:
    """There are others: they will have room."""
    house = House(replicas=2)
    house.fleet.max_in_flight = 1
    for _ in range(3):
        house.fleet.failed("r1", 0.0)
    house.placer.place(prompt(), "a", 0.0)
    with pytest.raises(NoRoomError):
        house.placer.place(prompt(), "b", 0.0)


def test_an_ejected_fleet_has_no_more_room_than_another() -> None:
    """Used for want of others, and within the limit."""
    house = House(replicas=1)
    house.fleet.max_in_flight = 1
    for _ in range(3):
        house.fleet.failed("r0", 0.0)
    house.placer.place(prompt(), "a", 0.0)
    with pytest.raises(NoRoomError):
        house.placer.place(prompt(), "b", 0.0)


def test_a_replica_that_joins_counts_as_slower_for_a_while() -> None:
    """It begins at a fifth of its speed; what was there when the router began has no ramp."""
    house = House(replicas=2)
    for tokens in (3_000, 3_000):
        house.placer.place(prompt(tokens, first=tokens), "busy", 0.0)
    unit = UnitFacts("r9/0", 0, SCHEME, Trust.EXACT, 64)
    house.fleet.announce(ReplicaFacts("r9", "http://r9:8000", "redis", (ServedModel("tiny", "tiny"),), (unit,)), 100.0)

    def speed(name: str, now_s: float) -> float:
        decision = house.placer.explain(prompt(5_000, first=9), now_s)
        return next(item.prefill_tokens_per_s for item in decision.candidates if item.unit_id == name)

    assert [speed("r9/0", now_s) for now_s in (100.0, 105.0, 110.0)] == pytest.approx([1_600, 4_800, 8_000])
    assert speed("r0/0", 100.0) == 8_000
    house.placer.configure(PlacementConfig(ramp_s=0), None)
    assert speed("r9/0", 100.0) == 8_000


def test_kv_pressure_is_the_engine_s_own_word_while_it_is_fresh() -> None:
    """A full replica is left alone; figures that are old say nothing."""
    house = House(replicas=2, weights={"kv_pressure_tokens": 5_000})
    house.holds("r0", prompt(1_024), 64)
    house.fleet.report_load("r0/0", EngineLoad(running=0, waiting=0, kv_usage=1.0, at_s=0.0))
    assert house.placer.explain(prompt(1_040), 1.0).winner == "r1/0"
    assert house.placer.explain(prompt(1_040), 60.0).winner == "r0/0"
