"""Other routers' rules: their formulas, worked out by hand."""

from __future__ import annotations

import pytest

from router.tools.simulation.peer_rules import (
    Aibrix,
    Asked,
    Dynamo,
    KubeAi,
    LlmD,
    Look,
    NoHitLru,
    Sglang,
    Sticky,
    TokenCost,
)

ASKED = Asked(1_000, (1, 2, 3, 4), 250)


def _look(replica: int, held: float = 0.0, waits: float = 0.0, running: int = 0, used: float = 0.0) -> Look:
    return Look(replica, held, max(1.0, 1_000 * (1 - held)), waits, running, 8_000.0, used)


def test_llm_d_adds_three_scores() -> None:
    """3 x 0.5 + 2 x 0 + 2 x 1 = 3.5 against 0 + 2 + 2 = 4; with three quarters held it is 4.25."""
    idle = _look(1)
    assert LlmD()([_look(0, 0.5, waits=900), idle], ASKED) is idle
    holder = _look(0, 0.75, waits=900)
    assert LlmD()([holder, idle], ASKED) is holder


def test_no_hit_lru_takes_turns_only_where_nobody_holds_anything() -> None:
    """New prompts go round; a prompt that is held anywhere goes by the scores."""
    rule = NoHitLru(LlmD())
    looks = [_look(replica) for replica in range(3)]
    assert [rule(looks, ASKED).replica for _ in range(4)] == [0, 1, 2, 0]
    held = [_look(0), _look(1), _look(2, 0.1)]
    assert rule(held, ASKED).replica == 2
    assert rule(looks, ASKED).replica == 1


@pytest.mark.parametrize(("waits", "wins"), [(16_000, 0), (17_000, 1)])
def test_sticky_stays_within_its_budget(waits, wins) -> None:
    """Two seconds at 8,000/s are 16,000 tokens over the cheapest: 100 + waits against 1,000."""
    looks = [_look(0, 0.9, waits=waits + 900), _look(1)]
    assert Sticky()(looks, ASKED).replica == wins


def test_sticky_needs_most_of_the_prompt() -> None:
    """Below 0.8 it is the cheapest."""
    assert Sticky()([_look(0, 0.7, waits=701), _look(1)], ASKED).replica == 1


def test_a_price_outbids_a_queue() -> None:
    """500 waiting against 500 more to compute: even at price 1 and for the holder at 2; 50 a running request."""
    looks = [_look(0, 0.5, waits=501), _look(1)]
    assert TokenCost()(looks, ASKED).replica == 1
    assert TokenCost(2.0)(looks, ASKED).replica == 0
    assert TokenCost(1.0, per_backlog_s=40.0, price_max=9.0)(looks, ASKED).replica == 0  # backlog: 0.03 s
    assert TokenCost(2.0)([_look(0, 0.5, waits=501, running=10), _look(1)], ASKED).replica == 1


def test_dynamo_s_formula_in_tokens() -> None:
    """scale x (waiting + prompt - credit x held) + used: 900 against 1,000, until decoding there outweighs it."""
    assert Dynamo()([_look(0, 0.5, waits=400), _look(1)], ASKED).replica == 0
    assert Dynamo()([_look(0, 0.5, waits=400, used=101), _look(1)], ASKED).replica == 1
    assert Dynamo(scale=3.0)([_look(0, 0.5, waits=400, used=299), _look(1)], ASKED).replica == 0
    assert Dynamo(credit=0.7)([_look(0, 0.5, waits=400), _look(1)], ASKED).replica == 1
    # 400 more than the lightest are 0.4 prompts: the credit falls to 1 / 1.4.
    assert Dynamo(decay=1.0)([_look(0, 0.5, waits=400), _look(1)], ASKED).replica == 1


def test_sglang_follows_the_prefix_until_requests_are_out_of_balance() -> None:
    """A match over 0.3 wins, one of 0.3 does not; 65 more requests than the idlest, and 1.5 times: the lightest."""
    assert Sglang()([_look(0, 0.31, running=60), _look(1)], ASKED).replica == 0
    assert Sglang()([_look(0, 0.3, running=60), _look(1)], ASKED).replica == 1
    assert Sglang()([_look(0, 0.9, running=65), _look(1)], ASKED).replica == 1


def test_aibrix_looks_for_prefixes_near_the_mean_load() -> None:
    """Out of balance by more than 8 only load counts; else holders over mean + deviation are left out."""
    assert Aibrix()([_look(0, 0.9, running=9), _look(1)], ASKED).replica == 1
    assert Aibrix()([_look(0, 0.9, running=8), _look(1)], ASKED).replica == 0  # mean 4, deviation 4
    looks = [_look(0, 0.9, running=8), _look(1, running=0), _look(2, 0.2, running=1), _look(3, running=1)]
    assert Aibrix()(looks, ASKED).replica == 2


def test_kubeai_keeps_a_prefix_at_its_owner_within_the_bound() -> None:
    """One owner for equal first blocks, whoever asks; past 1.25 times the mean it is the next on the ring."""
    rule, idle = KubeAi(), [_look(replica) for replica in range(4)]
    owner = rule(idle, ASKED).replica
    assert KubeAi()(idle, Asked(5_000, (1, 9, 9), 250)).replica == owner
    assert {rule(idle, Asked(1_000, (block,), 250)).replica for block in range(64)} == {0, 1, 2, 3}
    # 1.25 x (12 + 1) / 4 = 4.06: an owner with 3 takes it, one with 4 does not.
    even = [_look(replica, running=3) for replica in range(4)]
    assert rule(even, ASKED).replica == owner
    uneven = [_look(replica, running=4 if replica == owner else 2) for replica in range(4)]
    assert rule(uneven, ASKED).replica != owner


def test_kubeai_with_long_prefixes_tells_prompts_apart_later() -> None:
    """4,000 characters are 1,000 tokens: the fourth block of 250 decides."""
    rule, idle = KubeAi(4_000), [_look(replica) for replica in range(8)]
    places = {rule(idle, Asked(1_000, (1, 2, 3, last), 250)).replica for last in range(40)}
    assert len(places) > 4
    assert rule(idle, Asked(2_000, (1, 2, 3, 4, 5), 250)) is rule(idle, Asked(2_000, (1, 2, 3, 4, 6), 250))
