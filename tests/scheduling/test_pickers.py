"""Pickers and policies: the rule is what the documentation says."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from router.config_placement import PlacementConfig, WeightsConfig
from router.scheduling.candidate import Candidate
from router.scheduling.candidates import NO_CANDIDATES, Candidates
from router.scheduling.pickers import Choice
from router.scheduling.policies import POLICY_TABLE, Profile
from router.scheduling.ring import OwnerRing
from router.scheduling.scorers import price_of


def candidate(name: str, **figures: Any) -> Candidate:
    """A candidate for a prompt of 1,000 tokens."""
    figures.setdefault("expected_tokens", figures.get("matched_tokens", 0))
    return Candidate(name, name.partition("/")[0], 1_000, **figures)


def choice(*names: str, key: int | None = None, tie_tokens: float = 0.0) -> Choice:
    """What the pickers look at, with a seeded source of chance."""
    ring = OwnerRing()
    ring.set_names(names)
    return Choice(key, ring, tie_tokens, random.Random(7))


def winner(policy: str, candidates: list[Candidate], chosen: Choice, **config: Any) -> tuple[str, str]:
    """Who wins under a policy, and why."""
    pick = Profile(PlacementConfig(policy=policy, **config)).decide(candidates, chosen)  # type: ignore[arg-type]
    return pick.winner.unit_id, pick.reason


def test_cost_is_queue_plus_price_times_recompute_plus_running_plus_held() -> None:
    """Worked by hand: idle mean backlog 250 tokens at 1,000/s is 0.25 s, price 1 + 2 x 0.25 = 1.5."""
    profile = Profile(PlacementConfig())
    near = candidate(
        "a", matched_tokens=800, backlog_tokens=500, prefill_tokens_per_s=1_000, running=2, held_tokens=3_000
    )
    far = candidate("b", prefill_tokens_per_s=1_000)
    pick = profile.decide([near, far], choice("a", "b"))
    assert pick.price == pytest.approx(1.5)
    assert {item.unit_id: item.cost for item in pick.candidates} == pytest.approx(
        {"a": 500 + 1.5 * 200 + 20 * 2 + 0.05 * 3_000, "b": 1.5 * 1_000}
    )
    assert pick.winner.unit_id == "a"
    assert pick.lead_tokens == pytest.approx(1_500 - 990)


def test_a_queue_longer_than_the_prefix_saves_loses() -> None:
    """The holder of the prefix is passed over when waiting costs more than recomputing."""
    holder = candidate("a", matched_tokens=900, backlog_tokens=40_000)
    idle = candidate("b")
    assert winner("cost", [holder, idle], choice("a", "b")) == ("b", "cost")


def test_the_price_stays_within_its_bounds() -> None:
    """It begins at the base and ends at the maximum, however long the queue."""
    weights = WeightsConfig()
    assert price_of(Candidates.of([candidate("a")]), weights) == 1.0
    assert price_of(Candidates.of([candidate("a", backlog_tokens=10**9)]), weights) == 21.0
    assert price_of(NO_CANDIDATES, weights) == 1.0


def test_slower_tiers_and_lower_trust_save_less() -> None:
    """Half of 800 matched tokens on a tier that saves 80%: 800 - 400 x 0.2 = 720 saved; at 0.9 trust 648."""
    item = candidate("a", matched_tokens=800, cpu_tokens=400)
    assert item.uncached_tokens(cpu_share=0.8) == pytest.approx(280)
    item.trust_share = 0.9
    assert item.uncached_tokens(cpu_share=0.8) == pytest.approx(352)


def test_among_ties_the_owner_wins_and_without_one_the_least_loaded() -> None:
    """A cold prompt goes to its owner; when the owner is no candidate, to the lightest."""
    ring = choice("a", "b", "c", key=42, tie_tokens=64)
    owner = ring.ring.owner(42)
    items = [candidate(name, running=int(name == "a")) for name in "abc"]
    assert winner("cost", items, ring) == (owner, "owner")
    rest = [item for item in items if item.unit_id != owner]
    lightest = [item.unit_id for item in rest if item.running == 0]
    name, reason = winner("cost", rest, ring)
    assert name in lightest
    assert reason == ("random" if len(lightest) > 1 else "least-loaded")


def test_idle_ties_without_a_key_spread_evenly() -> None:
    """400 prompts nobody knows over 4 idle units: 60 to 140 each (RTE-04)."""
    chosen = choice("a", "b", "c", "d", tie_tokens=64)
    profile = Profile(PlacementConfig())
    counts = Counter(profile.decide([candidate(name) for name in "abcd"], chosen).winner.unit_id for _ in range(400))
    assert sorted(counts) == ["a", "b", "c", "d"]
    assert all(60 <= count <= 140 for count in counts.values())


def test_weights_of_zero_still_choose() -> None:
    """Load and price at zero make everyone a tie, never a division by zero."""
    weights = WeightsConfig(running_tokens=0, price_base=0, price_per_backlog_s=0, price_max=0)
    name, _ = winner("cost", [candidate("a"), candidate("b")], choice("a", "b"), weights=weights)
    assert name in ("a", "b")


def test_longest_prefix_takes_the_least_loaded_of_the_longest() -> None:
    """Load decides only among equals."""
    items = [
        candidate("a", matched_tokens=160, running=9, backlog_tokens=90),
        candidate("b", matched_tokens=160, running=1, backlog_tokens=10),
        candidate("c", matched_tokens=144),
    ]
    assert winner("longest-prefix", items, choice("a", "b", "c")) == ("b", "least-loaded")


def test_least_loaded_ignores_what_is_cached() -> None:
    """The lightest wins over the warmest."""
    items = [candidate("a", matched_tokens=900, backlog_tokens=5), candidate("b")]
    assert winner("least-loaded", items, choice("a", "b")) == ("b", "least-loaded")


def test_round_robin_takes_turns_and_explaining_does_not_take_one() -> None:
    """Only a choice that was carried out moves the turn."""
    profile = Profile(PlacementConfig(policy="round-robin"))
    items = [candidate(name) for name in "abc"]
    seen = []
    for _ in range(6):
        profile.decide(items, choice("a", "b", "c"))
        pick = profile.decide(items, choice("a", "b", "c"))
        profile.took(pick)
        seen.append(pick.winner.unit_id)
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_a_consistent_hash_owner_takes_no_more_than_its_bound() -> None:
    """With 1.25 times the mean load it passes on to the next on the ring, which is always the same."""
    ring = choice("a", "b", "c", "d", key=99)
    first, second, *_ = ring.ring.preference(99)
    items = [candidate(name, running=8 if name == first else 1) for name in "abcd"]
    assert winner("consistent-hash", items, ring) == (second, "owner")


def test_power_of_two_takes_the_lighter_of_two() -> None:
    """The heaviest of many never wins: it is always the heavier of its pair."""
    items = [candidate(name, running=index) for index, name in enumerate("abcd")]
    profile, chosen = Profile(PlacementConfig(policy="power-of-two")), choice("a", "b", "c", "d")
    assert "d" not in {profile.decide(items, chosen).winner.unit_id for _ in range(200)}


@pytest.mark.parametrize("policy", POLICY_TABLE)
def test_every_policy_takes_the_only_candidate(policy: str) -> None:
    """With one candidate there is nothing to weigh."""
    assert winner(policy, [candidate("a", running=99)], choice("a")) == ("a", "only")


def test_a_faster_replica_s_queue_and_recomputing_count_less() -> None:
    """Worked by hand: speeds 12,000 and 4,000, mean 8,000, so a token takes 2/3 and 2 of the mean. Price 1 for a fleet
    that has no price of pressure."""
    weights = {"price_per_backlog_s": 0.0}
    fast = candidate("a", backlog_tokens=3_000, prefill_tokens_per_s=12_000)
    slow = candidate("b", backlog_tokens=1_500, prefill_tokens_per_s=4_000)
    assert winner("cost", [fast, slow], choice("a", "b"), weights=weights) == ("a", "cost")
    assert (fast.cost, slow.cost) == pytest.approx((3_000 * 2 / 3 + 1_000 * 2 / 3, 1_500 * 2 + 1_000 * 2))
    alike = [candidate("a", backlog_tokens=3_000), candidate("b", backlog_tokens=1_500)]
    assert winner("cost", alike, choice("a", "b"), weights=weights) == ("b", "cost")


def test_speeds_that_chance_could_make_are_the_same() -> None:
    """Equal replicas learn speeds that differ a little, and each router others: owners must still agree."""
    names = [f"r{number}/0" for number in range(8)]
    rng = random.Random(11)
    chosen = set()
    for _ in range(20):
        offered = [
            Candidate(name, name, 10_000, prefill_tokens_per_s=8_000 * rng.uniform(0.87, 1.13)) for name in names
        ]
        chosen.add(winner("cost", offered, choice(*names, key=77)))
    assert len(chosen) == 1
    assert chosen.pop()[1] == "owner"


def test_a_nearly_full_kv_cache_costs_what_the_operator_says() -> None:
    """From its share on up to the whole at 1; nothing by default."""
    weights = WeightsConfig(kv_pressure_tokens=4_000, kv_pressure_from=0.8)
    full, half, free = (candidate(name, kv_usage_share=share) for name, share in (("a", 1.0), ("b", 0.9), ("c", 0.5)))
    profile = Profile(PlacementConfig(weights=weights))
    profile.decide([full, half, free], choice("a", "b", "c"))
    assert profile.terms[-1] == "kv_pressure"
    assert [item.terms[-1] for item in (full, half, free)] == pytest.approx([4_000, 2_000, 0])
    assert "kv_pressure" not in Profile(PlacementConfig()).terms
    profile.configure(PlacementConfig())
    profile.decide([full, half, free], choice("a", "b", "c"))
    assert full.cost == free.cost
