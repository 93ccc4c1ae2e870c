"""Other weights are tried on real requests without changing any choice."""

from __future__ import annotations

import random
from typing import Any

from router.config_placement import PlacementConfig
from router.scheduling.candidate import Candidate
from router.scheduling.pickers import Choice
from router.scheduling.policies import Profile
from router.scheduling.ring import OwnerRing
from router.scheduling.shadow import MAX_DIFFERENCES, Shadow

RING = OwnerRing(("a/0", "b/0"))


def config(shadow: dict[str, Any], **changes: Any) -> PlacementConfig:
    """A placement with a shadow."""
    return PlacementConfig.model_validate({"shadow": shadow, **changes})


def candidates(matched: int, backlog: float) -> list[Candidate]:
    """One that holds something and is busy, one that is neither."""
    a = Candidate("a/0", "a", 1_000, matched, expected_tokens=matched, backlog_tokens=backlog)
    return [a, Candidate("b/0", "b", 1_000)]


def decide(shadow: Shadow, profile: Profile, offered: list[Candidate], rng: random.Random) -> Candidate:
    """What the placer does."""
    choice = Choice(None, RING, 64.0, rng)
    scored = shadow.score(offered, choice)
    winner = profile.decide(offered, choice).winner
    if scored is not None:
        shadow.compare(scored, winner, "q")
    return winner


def test_what_differs_is_counted_with_what_it_would_have_matched() -> None:
    """Worked by hand: 800 of 1,000 tokens cached behind 1,500 waiting. At price 1.09 the idle one costs 1,094 and the
    holder 1,500 + 219; at price 21 waiting is worth it."""
    placement = config({"weights": {"price_base": 21}})
    told: list[tuple[bool, int, int]] = []
    shadow = Shadow(placement, random.Random(1), lambda *counted: told.append(counted))
    profile = Profile(placement)
    assert decide(shadow, profile, candidates(800, 1_500.0), random.Random(2)).unit_id == "b/0"
    assert decide(shadow, profile, candidates(800, 0.0), random.Random(2)).unit_id == "a/0"
    tally = shadow.tally.to_dict()
    [difference] = tally.pop("differences")
    assert tally == {
        "decisions": 2,
        "differed": 1,
        "prompt_tokens": 2_000,
        "matched_tokens": 800,
        "shadow_matched_tokens": 1_600,
    }
    assert (difference["winner"], difference["shadow_winner"]) == ("b/0", "a/0")
    assert difference["cheaper_by_tokens"] == 21_000 - (1_500 + 21 * 200)
    assert told == [(True, 0, 800), (False, 800, 800)]


def test_chance_among_equals_is_no_difference() -> None:
    """Equal weights never differ, also where costs tie."""
    placement = config({})
    shadow, profile = Shadow(placement, random.Random(1)), Profile(placement)
    rng = random.Random(2)
    for _ in range(200):
        decide(shadow, profile, candidates(0, 0.0), rng)
    assert (shadow.tally.decisions, shadow.tally.differed) == (200, 0)


def test_real_choices_and_costs_are_what_they_would_be_without_it() -> None:
    """The same chance is used up, and a Decision shows the real terms."""
    placement = config({"weights": {"price_base": 21, "running_tokens": 7}})
    shadow, profile = Shadow(placement, random.Random(1)), Profile(placement)
    with_shadow, without = random.Random(3), random.Random(3)
    for number in range(100):
        backlog = 100.0 * (number % 20)
        one, two = candidates(number, backlog), candidates(number, backlog)
        winner = decide(shadow, profile, one, with_shadow)
        other = profile.decide(two, Choice(None, RING, 64.0, without)).winner
        assert winner.unit_id == other.unit_id
        assert [(item.cost, item.terms) for item in one] == [(item.cost, item.terms) for item in two]


def test_a_sample_costs_a_share_and_what_is_kept_is_bounded() -> None:
    """One request in ten is scored; the last differences are kept."""
    placement = config({"weights": {"price_base": 21}, "sample_share": 0.1})
    shadow, profile = Shadow(placement, random.Random(1)), Profile(placement)
    for _ in range(5_000):
        decide(shadow, profile, candidates(800, 1_500.0), random.Random(2))
    assert 350 < shadow.tally.decisions < 650
    assert shadow.tally.differed == shadow.tally.decisions
    assert len(shadow.tally.differences) == MAX_DIFFERENCES
