"""Each request's predicted blocks against what its unit announces, in virtual time, with real placement."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from router.config_placement import PlacementConfig
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.vouching import Record, Vouching, VouchState
from router.index.announced import AnnouncedBlocks
from router.index.approximate import ApproximateMemory, memory_slot
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placement, Placer
from router.proving import PATIENCE_S, UNREAD_S, Proving
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
LAG_S = 0.2


class Engine:
    """A router's core over one unit, whose engine does what a test says. Between requests so much time passes that the
    agent must have found what it missed."""

    def __init__(self, trust: Trust = Trust.EXACT) -> None:
        self.index, self.announced, self.fleet = PrefixIndex(), AnnouncedBlocks(), Fleet()
        memory = ApproximateMemory(self.index)
        self.vouching = Vouching()
        self.verdicts: Counter[str] = Counter()
        proving = Proving(self.index, self.announced, self.vouching, LAG_S, lambda verdict: self.count(verdict))
        config = PlacementConfig(event_lag_s=LAG_S)
        self.placer = Placer(
            self.fleet, self.index, ExpectedBlocks(), memory, config, random.Random(3), lambda: 1e9, proving
        )
        facts = UnitFacts("r0/0", 0, SCHEME, trust, 64)
        self.fleet.announce(
            ReplicaFacts("r0", "http://r0:8000", "redis", (ServedModel("tiny", "tiny"),), (facts,)), 0.0
        )
        self.slot = self.fleet.units["r0/0"].slot
        self.now_s = 10.0
        self.announced.heard(self.slot, self.now_s)

    def count(self, verdict: str) -> None:
        self.verdicts[str(verdict)] += 1

    def place(self, asked: Prompt) -> Placement:
        return self.placer.place(asked, "q", self.now_s)

    def store(self, hashes: list[int], evict: bool = False) -> None:
        """The engine announces blocks, as the feed tells it; and their eviction."""
        self.index.store(self.slot, hashes)
        self.announced.stored(self.slot, hashes)
        if evict:
            self.index.remove(self.slot, hashes)

    def finish(self, placement: Placement, **changes: Any) -> None:
        figures = {"status": 200, "error": None, "prompt_tokens": None, "cached_tokens": None, "completion_tokens": 1}
        outcome = Outcome(**{**figures, "ttft_s": 0.1, "total_s": 0.2, **changes})
        self.placer.finish(placement, self.now_s, outcome)

    def later(self, seconds: float = LAG_S + UNREAD_S, *, heard: bool = True) -> None:
        """Time passes, the unit's heartbeat comes, what is due is judged."""
        end_s = self.now_s + seconds
        while heard and self.now_s < end_s - 1:
            self.now_s += 1
            self.announced.heard(self.slot, self.now_s)
        self.now_s = end_s
        if heard:
            self.announced.heard(self.slot, self.now_s)
        self.placer.proving.settle(self.now_s)

    def serve(self, asked: Prompt, stored: list[int], evict: bool = False, **changes: Any) -> Placement:
        """A whole request that stores these blocks."""
        placement = self.place(asked)
        self.store(stored, evict)
        self.finish(placement, **changes)
        self.later()
        return placement

    @property
    def record(self) -> Record:
        [record] = self.vouching.records_of(self.fleet.units["r0/0"])
        return record


def prompt(first: int = 0, tokens: int = 100, **changes: Any) -> Prompt:
    changes.setdefault("model", "tiny")
    changes.setdefault("kind", Kind.CHAT)
    return Prompt(stream=False, token_ids=list(range(first, first + tokens)), tokens=tokens, **changes)


def blocks(first: int = 0, tokens: int = 100) -> list[int]:
    return chain(range(first, first + tokens), SCHEME)


def other(first: int = 0) -> list[int]:
    """What an engine stores that renders otherwise: one token more in front."""
    return chain([4_000, *range(first, first + 100)], SCHEME)


def test_predicted_blocks_that_are_announced_are_good() -> None:
    """The plain case."""
    engine = Engine()
    engine.serve(prompt(), blocks())
    assert (engine.verdicts, engine.record.state) == ({"good": 1}, VouchState.VOUCHED)


def test_blocks_that_were_evicted_again_meanwhile_are_good() -> None:
    """Absence is no evidence: 50 prompts in a cache that keeps none of them."""
    engine = Engine()
    for number in range(50):
        engine.serve(prompt(1_000 * number), blocks(1_000 * number), evict=True)
    assert engine.verdicts == {"good": 50}
    assert engine.index.blocks_of(engine.slot) == 0


def test_matched_blocks_need_not_be_announced_again() -> None:
    """Only what was not held must appear; a prompt that is held whole proves nothing."""
    engine = Engine()
    engine.serve(prompt(), blocks())
    engine.serve(prompt(tokens=200), blocks(tokens=200)[6:])
    engine.serve(prompt(tokens=96), [])
    assert engine.verdicts == {"good": 2}


def test_other_blocks_instead_are_a_mismatch() -> None:
    """The unit announced that it stored, and none of the predicted ones."""
    engine = Engine()
    engine.serve(prompt(), other())
    assert (engine.verdicts, engine.record.agreed_tokens) == ({"mismatch": 1}, 0)


def test_a_late_agents_silence_proves_nothing_where_the_engine_does_not_say_what_it_read() -> None:
    """The prompt may lie in the cache since before the agent came; an engine that says it read nothing is believed."""
    engine = Engine()
    engine.fleet.units["r0/0"].whole = False
    for number in range(30):
        engine.serve(prompt(1_000 * number), other(1_000 * number))
    assert engine.verdicts == {"undecided": 30}
    assert engine.record.state is VouchState.UNPROVEN
    engine.serve(prompt(90_000), other(90_000), cached_tokens=0)
    assert engine.verdicts["mismatch"] == 1


def test_a_prompt_that_differs_from_some_token_on_is_a_mismatch_that_tells_where() -> None:
    """Two of six blocks were as predicted."""
    engine = Engine()
    engine.serve(prompt(), [*blocks()[:2], *other()[2:]])
    assert engine.verdicts == {"mismatch": 1}
    assert 16 <= engine.record.agreed_tokens <= 32


def test_distrust_after_five_leaves_other_kinds_exact_and_remembers_by_itself() -> None:
    """Chats are placed by what was sent, completions by what was announced."""
    engine = Engine()
    for number in range(5):
        engine.serve(prompt(1_000 * number), other(1_000 * number))
        engine.serve(prompt(7_000, kind=Kind.COMPLETION), blocks(7_000) if number == 0 else [])
    assert engine.vouching.is_distrusted(engine.fleet.units["r0/0"], "tiny", "chat")
    first = engine.serve(prompt(50_000), other(50_000))
    again = engine.place(prompt(50_000))
    assert (first.decision.matched_tokens, first.decision.trust) == (0, "approximate")
    assert (again.decision.matched_tokens, again.decision.trust) == (96, "approximate")
    exact = engine.place(prompt(7_000, kind=Kind.COMPLETION)).decision
    assert (exact.matched_tokens, exact.trust) == (96, "exact")
    assert engine.index.blocks_of(memory_slot(engine.slot)) == 6


def test_trust_comes_back_after_twenty_good_and_the_memory_is_dropped() -> None:
    """Verdicts go on while distrusted."""
    engine = Engine()
    for number in range(5):
        engine.serve(prompt(1_000 * number), other(1_000 * number))
    for number in range(20):
        assert engine.record.state is VouchState.DISTRUSTED
        engine.serve(prompt(100_000 + 1_000 * number), blocks(100_000 + 1_000 * number))
    assert engine.record.state is VouchState.VOUCHED
    assert engine.serve(prompt(900_000), blocks(900_000)).decision.trust == "exact"
    assert engine.index.blocks_of(memory_slot(engine.slot)) == 0


def test_nothing_is_judged_before_the_unit_was_heard_after_the_event_lag() -> None:
    """Announcements may be on their way; a silent agent is never called a mismatch."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.store(other())
    engine.finish(placement)
    engine.later(LAG_S / 2)
    engine.later(5.0, heard=False)
    assert engine.verdicts == {}
    engine.later(PATIENCE_S, heard=False)
    assert engine.verdicts == {"undecided": 1}


def test_a_heartbeat_does_not_tell_that_the_agent_read_everything() -> None:
    """An event was lost on its way to an agent that lives and told of others. It is found while the engine is quiet."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.store(other(5_000))
    engine.finish(placement)
    engine.later(1.0)
    assert engine.verdicts == {}
    engine.store(blocks())
    engine.later(1.0)
    assert engine.verdicts == {"good": 1}


def test_a_unit_that_was_silent_tells_late_of_what_it_read() -> None:
    """Its agent had no Redis for some seconds, and the engine died meanwhile: what was queued proves nothing."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.store(other(5_000))
    engine.finish(placement)
    engine.later(5.0, heard=False)
    engine.store(other(9_000))
    engine.announced.heard(engine.slot, engine.now_s, batch=True)
    engine.later()
    assert engine.verdicts == {"undecided": 1}


def test_what_is_announced_later_tells_that_the_agent_read_everything_before() -> None:
    """Agents read in order: with the next announcement, what is missing is missing."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.store(other())
    engine.finish(placement)
    engine.later(1.0)
    engine.store(other(5_000))
    engine.announced.heard(engine.slot, engine.now_s, batch=True)
    engine.later(0.1)
    assert engine.verdicts == {"mismatch": 1}


def test_what_an_agent_tells_that_hung_proves_nothing_of_later_requests() -> None:
    """It goes on with events from before the request: they come now, but the engine made them then."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.finish(placement)
    engine.later(2.0, heard=False)
    engine.store(other(5_000))
    engine.announced.heard(engine.slot, engine.now_s, behind_s=2.1, batch=True)
    engine.later(0.1, heard=False)
    assert engine.verdicts == {}
    engine.store(blocks())
    engine.announced.heard(engine.slot, engine.now_s, batch=True)
    engine.later(0.1)
    assert engine.verdicts == {"good": 1}


def test_heartbeats_of_an_agent_that_is_behind_prove_nothing() -> None:
    """It lives and waits for its engine's replay, while what the engine announced since waits behind it."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.store(other(5_000))
    engine.finish(placement)
    for second in range(1, 13):
        engine.now_s += 1.0
        engine.announced.heard(engine.slot, engine.now_s, behind_s=second)
        engine.placer.proving.settle(engine.now_s)
    assert engine.verdicts == {}
    engine.later()
    assert engine.verdicts == {"mismatch": 1}


def test_late_announcements_are_good() -> None:
    """What comes while the verdict waits counts."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.store(other(5_000))
    engine.finish(placement)
    engine.later(5.0, heard=False)
    engine.store(blocks())
    engine.later()
    assert engine.verdicts == {"good": 1}


@pytest.mark.parametrize(
    "what", ["interrupted", "nothing_stored", "held_before_the_agent_came", "aborted", "failed", "reads_nothing"]
)
def test_what_proves_nothing_is_no_mismatch(what: str) -> None:
    """A gap, no new block at all, an engine that had the blocks, no computed prompt, no reading."""
    engine = Engine()
    placement = engine.place(prompt(reads_cache=what != "reads_nothing"))
    engine.store([] if what == "nothing_stored" else other())
    if what == "interrupted":
        engine.announced.interrupted(engine.slot)
    changes: dict[str, Any] = {
        "held_before_the_agent_came": {"cached_tokens": 96},
        "aborted": {"aborted": True},
        "failed": {"status": 500},
    }.get(what, {})
    engine.finish(placement, **changes)
    engine.later(PATIENCE_S * 2)
    assert "mismatch" not in engine.verdicts
    assert len(engine.announced) == 0


def test_a_stream_waits_for_its_end_where_only_the_engine_can_tell() -> None:
    """After its first token nothing predicted came; the usage at the end says that it all was cached."""
    engine = Engine()
    placement = engine.place(prompt())
    engine.placer.first_token(placement, engine.now_s)
    engine.store(other(5_000))
    engine.later()
    assert engine.verdicts == {}
    engine.finish(placement, cached_tokens=96)
    engine.later()
    assert engine.verdicts == {"undecided": 1}


def test_delivered_tokens_are_counted_apart() -> None:
    """Against the prediction: as predicted, above, below; none of it touches trust."""
    engine = Engine()
    engine.serve(prompt(), blocks(), cached_tokens=0)
    engine.serve(prompt(tokens=200), blocks(tokens=200)[6:], cached_tokens=112)
    engine.serve(prompt(tokens=200), [], cached_tokens=0)
    record = engine.record
    delivered = (record.delivered_as_predicted, record.delivered_above, record.delivered_below)
    assert (delivered, record.mismatched) == ((1, 1, 1), 0)


def test_units_without_reports_are_not_judged() -> None:
    """APPROXIMATE: there is nothing to hold predictions against."""
    engine = Engine(Trust.APPROXIMATE)
    engine.serve(prompt(), other())
    assert (engine.verdicts, engine.vouching.records_of(engine.fleet.units["r0/0"])) == ({}, [])
