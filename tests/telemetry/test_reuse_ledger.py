"""The reuse ledger: each lost token has a reason, and the sums agree to the token."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.facts import Trust
from router.fleet.vouching import VouchState
from router.request.reasons import Reason
from router.telemetry import reuse_ledger
from router.telemetry.reuse_ledger import LOSSES, MAX_ACCOUNTS, STAGES, ReuseLedger
from tests.telemetry.placed import BLOCK, SCHEME, SmallFleet, outcome, prompt


def total(ledger: ReuseLedger) -> dict[str, int]:
    """All stages and losses, without those that are zero."""
    view = ledger.to_dict()["total"]
    return {name: value for name, value in {**view["tokens"], **view["lost_tokens"]}.items() if value}


def assert_agrees(ledger: ReuseLedger) -> None:
    """Both identities of the module, for each account and the sum."""
    view = ledger.to_dict()
    for each in [view["total"], *view["accounts"]]:
        stages, lost = each["tokens"], each["lost_tokens"]
        assert stages["prompt"] == stages["delivered"] + stages["unobserved"] + sum(lost.values())
        short = lost["stale"] + lost["mismatch"]
        assert stages["captured"] + stages["unpredicted"] == stages["delivered"] + stages["unobserved"] + short
        assert min([*stages.values(), *lost.values()]) >= 0


@pytest.fixture
def fleet() -> SmallFleet:
    """Two replicas, under the rule that looks at load alone where a test needs a shorter match to win."""
    return SmallFleet()


@pytest.fixture
def ledger() -> ReuseLedger:
    """An empty one."""
    return ReuseLedger()


def test_a_first_prompt_is_lost_but_for_nobody_s_fault(fleet, ledger) -> None:
    """161 tokens are ten blocks and a token that no cache holds."""
    ledger.count("tiny", None, fleet.place(prompt()), outcome(0, 161))
    assert total(ledger) == {"prompt": 161, "first_time": 160, "tail": 1}
    assert_agrees(ledger)


def test_a_captured_prefix_is_delivered(fleet, ledger) -> None:
    """Six blocks are held, and the engine reads them."""
    one = prompt()
    fleet.holds("r1", one, 6)
    ledger.count("tiny", None, fleet.place(one), outcome(96, 161))
    assert total(ledger) == {
        "prompt": 161,
        "available": 96,
        "captured": 96,
        "delivered": 96,
        "first_time": 64,
        "tail": 1,
    }


def test_what_went_by_and_is_held_nowhere_was_evicted(fleet, ledger) -> None:
    """The same prompt again, after all replicas forgot it."""
    for _ in range(2):
        ledger.count("tiny", None, fleet.place(prompt()), outcome(0, 161))
    assert total(ledger) == {"prompt": 322, "first_time": 160, "evicted": 160, "tail": 2}


def test_a_longer_match_that_was_passed_over_is_lost_to_load(ledger) -> None:
    """r0 holds eight blocks and has a queue; the policy looks at load."""
    fleet, one = SmallFleet(policy="least-loaded"), prompt()
    fleet.holds("r0", one, 8)
    fleet.fleet.units["r0/0"].in_flight.reserve(5_000, 0.0, observable=True, teaches=False)
    placement = fleet.place(one)
    assert placement.replica.replica_id == "r1"
    ledger.count("tiny", None, placement, outcome(0, 161))
    assert total(ledger) == {"prompt": 161, "available": 128, "load": 128, "first_time": 32, "tail": 1}


def test_what_a_draining_replica_holds_is_unavailable(fleet, ledger) -> None:
    """It is no candidate, and its blocks are known all the same."""
    one = prompt()
    fleet.holds("r0", one, 8)
    fleet.fleet.mark_draining("r0")
    ledger.count("tiny", None, fleet.place(one), outcome(0, 161))
    assert total(ledger) == {"prompt": 161, "unavailable": 128, "first_time": 32, "tail": 1}


def test_fewer_than_predicted_are_stale(fleet, ledger) -> None:
    """Six blocks were predicted, two came."""
    one = prompt()
    fleet.holds("r0", one, 6)
    ledger.count("tiny", None, fleet.place(one), outcome(32, 161))
    assert total(ledger)["stale"] == 64
    assert_agrees(ledger)


def test_fewer_of_a_prompt_that_is_another_for_the_engine_are_a_mismatch(fleet, ledger) -> None:
    """The engine counts 170 tokens where the router counted 161: what it computed is not what was predicted."""
    one = prompt()
    fleet.holds("r0", one, 6)
    ledger.count("tiny", None, fleet.place(one), outcome(0, 170))
    lost = total(ledger)
    assert (lost["mismatch"], lost["not_understood"], "stale" in lost) == (96, 9, False)
    assert_agrees(ledger)


def test_fewer_of_a_kind_that_is_distrusted_are_a_mismatch(fleet, ledger) -> None:
    """The engine stores other blocks than the router computes: known of this model and kind."""
    one = prompt()
    fleet.holds("r0", one, 6)
    placement = fleet.place(one)
    assert placement.record is not None
    placement.record.state = VouchState.DISTRUSTED
    ledger.count("tiny", None, placement, outcome(0, 161))
    assert total(ledger)["mismatch"] == 96


def test_more_than_predicted_is_unpredicted_and_closes_what_load_would_have_lost(ledger) -> None:
    """r1 was predicted to hold nothing and read ten blocks: nothing is lost."""
    fleet, one = SmallFleet(policy="least-loaded"), prompt()
    fleet.holds("r0", one, 8)
    fleet.fleet.units["r0/0"].in_flight.reserve(5_000, 0.0, observable=True, teaches=False)
    ledger.count("tiny", None, fleet.place(one), outcome(160, 161))
    assert total(ledger) == {"prompt": 161, "available": 128, "delivered": 160, "unpredicted": 160, "tail": 1}


def test_what_the_engine_does_not_report_is_unobserved(fleet, ledger) -> None:
    """A stream without usage: the router's own count of the prompt holds."""
    one = prompt()
    fleet.holds("r0", one, 6)
    ledger.count("tiny", None, fleet.place(one), outcome(None, None))
    assert total(ledger) == {
        "prompt": 161,
        "available": 96,
        "captured": 96,
        "unobserved": 96,
        "first_time": 64,
        "tail": 1,
    }


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        (Reason.DEADLINE, "deadline"),
        (Reason.QUEUE_FULL, "deadline"),
        (Reason.REMOTE_DEADLINE, "deadline"),
        (Reason.BAD_JSON, "not_understood"),
        (Reason.NO_TOKENIZER, "not_understood"),
    ],
)
def test_a_prompt_that_was_not_read_says_why(fleet, ledger, reason, lost) -> None:
    """Nothing is known of where it was held; the engine's count is what there is."""
    ledger.count("tiny", None, fleet.place(prompt(token_ids=None, tokens=40, reason=reason)), outcome(16, 161))
    assert total(ledger) == {"prompt": 161, "delivered": 16, "unpredicted": 16, lost: 145}


def test_an_estimate_is_no_ground_for_sums(fleet, ledger) -> None:
    """Neither side knows the length: the request is counted, and no token."""
    ledger.count("tiny", None, fleet.place(prompt(token_ids=None, reason=Reason.BAD_JSON)), outcome(None, None))
    assert total(ledger) == {}
    assert ledger.to_dict()["total"]["unmeasured_requests"] == 1


def test_media_lose_what_follows_them(fleet, ledger) -> None:
    """81 tokens are known before the first picture, of 500."""
    ledger.count("tiny", None, fleet.place(prompt(81, reason=Reason.MEDIA)), outcome(0, 500))
    assert total(ledger) == {"prompt": 500, "first_time": 80, "not_understood": 420}


def test_a_prompt_whose_cache_is_not_read_loses_it_all(fleet, ledger) -> None:
    """It asks for logprobs of its prompt."""
    one = prompt(reads_cache=False)
    fleet.holds("r0", one, 6)
    ledger.count("tiny", None, fleet.place(one), outcome(0, 161))
    assert total(ledger) == {"prompt": 161, "not_read": 161}


def test_further_prompts_of_a_batch_are_not_read(fleet, ledger) -> None:
    """The router reads the first of two."""
    ledger.count("tiny", None, fleet.place(prompt(other_tokens=39)), outcome(0, 200))
    assert total(ledger) == {"prompt": 200, "first_time": 160, "tail": 1, "not_understood": 39}


def test_models_and_tenants_have_accounts_of_their_own_up_to_a_bound(fleet, ledger) -> None:
    """What clients make up shares one account in the end, and its sums agree, too."""
    for number in range(MAX_ACCOUNTS + 20):
        ledger.count("tiny", f"t{number}", fleet.place(prompt()), outcome(0, 161))
    accounts = ledger.to_dict()["accounts"]
    assert len(accounts) == MAX_ACCOUNTS + 1
    assert accounts[-1]["model"] == "other"
    assert accounts[-1]["requests"] == 20
    assert_agrees(ledger)


@given(st.data())
def test_sums_agree_to_the_token_whatever_comes(data: st.DataObject) -> None:
    """Any prompts, matches, policies and reports: both identities hold."""
    policies = ("cost", "least-loaded", "longest-prefix", "random")
    fleet = SmallFleet(data.draw(st.integers(1, 3)), policy=data.draw(st.sampled_from(policies)))
    ledger, number = ReuseLedger(), st.integers(0, 200)
    for _ in range(data.draw(st.integers(1, 6))):
        tokens = data.draw(st.integers(1, 200))
        reason: Any = data.draw(st.sampled_from([None, None, None, Reason.MEDIA, Reason.DEADLINE]))
        changes = {"reads_cache": data.draw(st.booleans()), "other_tokens": data.draw(st.sampled_from([0, 0, 30]))}
        if reason is Reason.DEADLINE:
            changes["token_ids"] = None
        one = prompt(tokens, data.draw(st.integers(0, 2)), reason=reason, **changes)
        for name in fleet.fleet.replicas:
            fleet.holds(name, one, data.draw(st.integers(0, 12)))
        engine_tokens = data.draw(st.one_of(st.none(), st.just(tokens), number))
        cached = data.draw(st.one_of(st.none(), number))
        ledger.count("tiny", data.draw(st.sampled_from([None, "a"])), fleet.place(one), outcome(cached, engine_tokens))
    assert_agrees(ledger)


def test_the_infinite_cache_hits_all_but_what_is_new(ledger) -> None:
    """Conversations of shared documents: against a count that keeps every block, within four standard errors."""
    fleet, rng = SmallFleet(trust=Trust.APPROXIMATE), random.Random(6)
    documents = [[rng.randrange(50_000) for _ in range(800)] for _ in range(40)]
    kept: set[int] = set()
    hits = 0
    for _ in range(400):
        ids = rng.choice(documents)[: rng.randrange(100, 800)] + [rng.randrange(50_000) for _ in range(100)]
        one = prompt(len(ids), token_ids=ids)
        chain = one.chain(SCHEME, None)
        readable = (len(ids) - 1) // BLOCK
        seen = next((place for place, block in enumerate(chain) if block not in kept), len(chain))
        hits += min(seen, readable) * BLOCK
        kept.update(chain)
        ledger.count("tiny", None, fleet.place(one), outcome(0, len(ids)))
    view = ledger.to_dict()["total"]
    estimate, error = (view["infinite_cache"][name] for name in ("hit_tokens", "standard_error_tokens"))
    assert 0 < error < 0.02 * hits
    # A prompt's last block, where it ends the prompt exactly, is stored and not counted: a block each for 1 in 16.
    assert estimate == pytest.approx(hits, abs=4 * error + 400 // 16 * BLOCK * 2)
    assert view["lost_tokens"]["evicted"] == pytest.approx(hits, abs=0.01 * hits)


def test_every_stage_and_loss_has_a_meaning() -> None:
    """For the documentation."""
    assert all({**STAGES, **LOSSES}.values())


def test_each_loss_is_counted_under_its_own_name() -> None:
    """The places that the code counts at are those of the names."""
    names = [*STAGES, *LOSSES]
    assert [getattr(reuse_ledger, f"_{name.upper()}") for name in names] == list(range(len(names)))
