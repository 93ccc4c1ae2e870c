"""The sentence that says why: right for each way to win, for decisions as placement makes them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config_placement import POLICIES
from router.fleet.facts import Trust
from router.request.reasons import Reason
from router.scheduling.why import outcome_sentence, sentence
from tests.telemetry.placed import SmallFleet, outcome, prompt


def busy(fleet: SmallFleet, name: str, tokens: int) -> None:
    """Other prompts wait there."""
    unit = fleet.fleet.units[f"{name}/0"]
    unit.in_flight.reserve(tokens, 0.0, observable=True, teaches=False)


def why(fleet: SmallFleet, one: Any = None, tried: tuple[str, ...] = (), **changes: Any) -> str:
    """The sentence of a prompt placed now."""
    view = fleet.place(one or prompt(), tried=tried).decision.to_dict()
    return sentence({**view, **changes})


def test_won_by_prefix() -> None:
    """What it holds, how much more than the next one, and that nothing speaks against it."""
    fleet, one = SmallFleet(), prompt()
    fleet.holds("r1", one, 8)
    assert re.fullmatch(
        r"r1 won by its prefix: it holds 128 of 161 tokens, 128 more than r0 \(cheaper than r0 by \d+\)\.",
        why(fleet, one),
    )


def test_won_by_prefix_against_a_queue() -> None:
    """The longer queue is named with its length: 100 tokens and a running request of r1."""
    fleet, one = SmallFleet(tie_tokens=0), prompt(1_601)
    fleet.holds("r1", one, 80)
    busy(fleet, "r1", 100)
    text = why(fleet, one)
    assert text.startswith(
        "r1 won by its prefix: it holds 1,280 of 1,601 tokens, 1,280 more than r0, which outweighs its"
    )
    assert re.search(r"longer queue \(by 1\d\d\)", text)


def test_won_by_load_against_a_longer_prefix() -> None:
    """Who holds more is named, with what waits there: 20,000 tokens, a running request, and 0.05 for each it holds."""
    fleet, one = SmallFleet(), prompt()
    fleet.holds("r0", one, 4)
    busy(fleet, "r0", 20_000)
    text = why(fleet, one)
    assert re.match(r"r1 won by load: r0 holds 64 more of the prompt, but its queue is longer by 21,020", text)


def test_won_by_load_with_nothing_held() -> None:
    """Neither holds anything."""
    fleet = SmallFleet()
    busy(fleet, "r0", 20_000)
    assert why(fleet).startswith("r1 won by load: neither holds any of the prompt, and its queue is shorter by 21,020")


def test_won_by_load_with_equal_matches() -> None:
    """Both hold the same."""
    fleet, one = SmallFleet(), prompt()
    for name in ("r0", "r1"):
        fleet.holds(name, one, 4)
    busy(fleet, "r0", 20_000)
    assert why(fleet, one).startswith("r1 won by load: both hold 64 of 161 tokens, and its queue is shorter by 21,020")


def test_won_by_the_tie_s_owner() -> None:
    """Nothing is held: the hash ring decides."""
    text = why(SmallFleet())
    assert re.fullmatch(
        r"costs were equal \(none of the prompt is held\), and (r\d) owns the prompt's first blocks on the hash ring\.",
        text,
    )


def test_a_tie_that_the_longest_prefix_decides() -> None:
    """Within `tie_tokens` of each other."""
    fleet, one = SmallFleet(tie_tokens=5_000), prompt()
    fleet.holds("r1", one, 4)
    assert why(fleet, one) == "costs were equal, and r1 holds the longest prefix, 64 of 161 tokens."


def test_a_tie_of_a_prompt_that_was_not_understood() -> None:
    """No ring, so load decides, or chance; and it says that the prompt was not read."""
    text = why(SmallFleet(), prompt(token_ids=None, reason=Reason.DEADLINE))
    assert re.fullmatch(
        r"the prompt was not understood to its end \(deadline\); then nothing told them apart \(none of the prompt is "
        r"held\), and r\d was drawn at random\.",
        text,
    )


def test_only_one_there() -> None:
    """A fleet of one."""
    fleet, one = SmallFleet(1), prompt()
    assert why(SmallFleet(1)) == "r0 is the only replica that serves the model."
    fleet.holds("r0", one, 4)
    assert why(fleet, one) == "r0 is the only replica that serves the model; it holds 64 of 161 tokens."


def test_only_one_left() -> None:
    """Each filter's reason is told."""
    fleet = SmallFleet(3)
    fleet.fleet.mark_draining("r0")
    fleet.fleet.mark_down("r1", "fails its health probes")
    assert why(fleet) == "r2 was the only one left: r0 is draining, r1 is down."


def test_many_that_are_removed_are_counted() -> None:
    """Names of a large fleet would fill a page."""
    fleet = SmallFleet(6)
    for number in range(5):
        fleet.fleet.mark_draining(f"r{number}")
    assert why(fleet) == "r5 was the only one left: 5 replicas could not take it (5 draining)."


def test_a_removed_replica_that_held_more_is_told() -> None:
    """Else a reader asks why the longest match was not taken."""
    fleet, one = SmallFleet(3), prompt()
    fleet.holds("r0", one, 8)
    fleet.fleet.mark_draining("r0")
    assert why(fleet, one).endswith("; r0 is draining; one that could not take it holds 128 tokens.")


def test_retried() -> None:
    """What was tried before begins the sentence, and is not told twice."""
    text = why(SmallFleet(3), tried=("r0",))
    assert text.startswith("r0 was tried before and failed; then ")
    assert text.count("r0") == 1


def test_queued() -> None:
    """Time in the queue is told."""
    text = why(SmallFleet(), queued_s=0.25)
    assert text.startswith("it waited 250 ms for a replica with room; then ")


def test_expected_blocks_are_told() -> None:
    """A second request goes where the first is being computed."""
    fleet, one = SmallFleet(), prompt()
    first = fleet.place(one, "a")
    text = sentence(fleet.place(one, "b", 0.001).decision.to_dict())
    assert first.replica.replica_id in text
    assert "160 of its tokens are still being computed there by requests in flight" in text


def test_remembered_matches_are_told() -> None:
    """No events: the router's own memory."""
    fleet, one = SmallFleet(trust=Trust.APPROXIMATE), prompt()
    fleet.holds("r1", one, 8)
    assert why(fleet, one).endswith("; its match is what the router remembers, not what the engine reports.")


def test_slower_tiers_are_told() -> None:
    """Blocks on the CPU have to be loaded."""
    fleet, one = SmallFleet(), prompt()
    fleet.index.store(fleet.fleet.units["r1/0"].slot, one.chain(fleet.scheme, None)[:8], tier=1)
    assert why(fleet, one).endswith("; 128 have to be loaded from slower memory.")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("round-robin", r"r\d was next in turn\."),
        ("random", r"r\d was drawn at random\."),
        ("longest-prefix", r"r1 holds the longest prefix, 128 of 161 tokens\."),
        ("consistent-hash", r"r\d owns the prompt's first blocks on the hash ring\."),
        ("least-loaded", r"r\d was the least loaded, with 0 tokens waiting\."),
    ],
)
def test_other_policies(policy: str, expected: str) -> None:
    """Each has its own words."""
    fleet, one = SmallFleet(policy=policy), prompt()
    fleet.holds("r1", one, 8)
    if policy == "least-loaded":
        busy(fleet, "r0", 500)
    assert re.fullmatch(expected, why(fleet, one))


def test_affinity_and_rules_that_are_not_known() -> None:
    """A rule that comes later is named."""
    fleet = SmallFleet()
    assert "took it, since its session is there" in why(fleet, reason="affinity")
    assert "was chosen by the rule `new-rule`" in why(fleet, reason="new-rule")


def test_ranks_of_a_replica_are_told_apart() -> None:
    """Two units of one replica bear their own names."""
    view = SmallFleet().place(prompt()).decision.to_dict()
    for candidate in view["candidates"]:
        candidate["replica"] = "r0"
    assert view["winner"] in sentence(view)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (outcome(128, 161), "The engine had 128 tokens cached, as predicted."),
        (outcome(64, 161), "The engine had 64 tokens cached, 64 fewer than predicted."),
        (outcome(144, 161), "The engine had 144 tokens cached, 16 more than predicted."),
        (outcome(1, 161), "The engine had 1 token cached, 127 fewer than predicted."),
        (outcome(None), "The engine did not report what it had cached; 128 tokens were predicted."),
        (outcome(None, status=400), "The engine answered with status 400."),
        (outcome(None, status=None, error="no_connection"), "It ended with the router's error `no_connection`."),
        (outcome(None, aborted=True), "The client left before the answer was complete."),
    ],
)
def test_what_came_of_it(end: Any, expected: str) -> None:
    """Delivered against predicted, or how it ended otherwise."""
    fleet, one = SmallFleet(), prompt()
    fleet.holds("r1", one, 8)
    placement = fleet.place(one)
    assert outcome_sentence(placement.decision.to_dict()) is None
    placement.decision.outcome = end
    assert outcome_sentence(placement.decision.to_dict()) == expected


@given(st.data())
def test_every_decision_has_one_true_sentence(data: st.DataObject) -> None:
    """Any fleet, policy, match and queue: one sentence, that names the winner; who is said to hold more does."""
    fleet = SmallFleet(data.draw(st.integers(1, 4)), policy=data.draw(st.sampled_from(POLICIES)))
    one = prompt(data.draw(st.integers(1, 400)))
    for name in fleet.fleet.replicas:
        fleet.holds(name, one, data.draw(st.integers(0, 25)))
        if data.draw(st.booleans()):
            busy(fleet, name, data.draw(st.integers(1, 5_000)))
    view = fleet.place(one).decision.to_dict()
    text = sentence(view)
    assert view["winner"].partition("/")[0] in text
    assert text.endswith(".")
    assert text.count(".") == 1
    held = {item["replica"]: item["expected_tokens"] for item in view["candidates"]}
    found = re.search(r"(r\d) won by its prefix: it holds ([\d,]+) of .*, ([\d,]+) more than (r\d)", text)
    if found:
        winner, tokens, more, other = found.groups()
        assert held[winner] == int(tokens.replace(",", ""))
        assert held[winner] - held[other] == int(more.replace(",", ""))
    found = re.search(r"won by load: (r\d) holds ([\d,]+) more", text)
    if found:
        assert held[found[1]] - held[view["winner"].partition("/")[0]] == int(found[2].replace(",", ""))
