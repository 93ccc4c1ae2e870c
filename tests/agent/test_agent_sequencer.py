"""Numbers and fingerprints tell order, duplicates, gaps and restarts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replica.agent.sequencer import RECENT_BATCHES, ReplayVerdict, Sequencer, Verdict


def at(position: int) -> Sequencer:
    """Return a sequencer that accepted 0..position-1, each with its number as its fingerprint."""
    sequencer = Sequencer()
    for number in range(position):
        sequencer.accept(number, number)
    return sequencer


def test_the_first_batch_of_an_engine_is_number_0() -> None:
    """0 is in order at the start; any other number means that the beginning is missing."""
    assert Sequencer().judge(0, 7) is Verdict.IN_ORDER
    assert Sequencer().judge(4, 7) is Verdict.GAP
    assert Sequencer().replay_from == 0


def test_order_gap_duplicate() -> None:
    """After 0..4: 5 is next, 6 leaves a gap, 3 with the same fingerprint is a duplicate."""
    sequencer = at(5)
    assert sequencer.judge(5, 99) is Verdict.IN_ORDER
    assert sequencer.judge(6, 99) is Verdict.GAP
    assert sequencer.judge(3, 3) is Verdict.DUPLICATE


def test_a_number_seen_before_with_other_content_is_a_restart() -> None:
    """0 again, or any other number that was seen with another payload, is a new life of the engine."""
    assert at(5).judge(0, 99) is Verdict.RESTART
    assert at(5).judge(3, 99) is Verdict.RESTART


def test_a_restart_is_seen_behind_the_window_too() -> None:
    """A number that is older than all fingerprints that are kept is a restart."""
    assert at(RECENT_BATCHES + 10).judge(0, 0) is Verdict.RESTART


def test_after_a_restart_numbers_begin_at_0() -> None:
    """The new life's batch 0 is in order."""
    sequencer = at(5)
    sequencer.restart()
    assert sequencer.judge(0, 99) is Verdict.IN_ORDER


def test_a_replay_overlaps_by_one_batch() -> None:
    """It is asked from the last batch that was seen, and goes on only when that batch is the one that was seen."""
    sequencer = at(5)
    assert sequencer.replay_from == 4
    assert sequencer.judge_replay(4, [(4, 4), (5, 55)]) is ReplayVerdict.WHOLE
    assert sequencer.judge_replay(4, [(4, 99), (5, 55)]) is ReplayVerdict.OTHER_LIFE


def test_an_engine_that_lacks_what_it_sent_is_another_one() -> None:
    """An empty replay from a batch on that was seen: a restarted engine that has sent less."""
    assert at(5).judge_replay(4, []) is ReplayVerdict.OTHER_LIFE
    assert Sequencer().judge_replay(0, []) is ReplayVerdict.WHOLE


def test_a_truncated_replay_is_noticed() -> None:
    """The reply starts later than the first missing batch, without a sign."""
    assert at(5).judge_replay(4, [(7, 7), (8, 8)]) is ReplayVerdict.TRUNCATED
    assert Sequencer().judge_replay(0, [(3, 3)]) is ReplayVerdict.TRUNCATED
    assert at(5).judge_replay(4, [(5, 5)]) is ReplayVerdict.WHOLE


def test_an_impossible_replay_is_noticed() -> None:
    """Numbers with holes, backwards, or from before what was asked for."""
    for batches in ([(4, 4), (6, 6)], [(5, 5), (4, 4)], [(2, 2), (3, 3)]):
        assert at(5).judge_replay(4, batches) is ReplayVerdict.IMPOSSIBLE


@given(st.lists(st.integers(0, 30), max_size=60))
def test_whatever_order_frames_come_in_only_the_next_is_in_order(numbers: list[int]) -> None:
    """Fed with one life's batches in any order and number, it accepts 0, 1, 2... and never sees a restart."""
    sequencer = Sequencer()
    accepted = []
    for number in numbers:
        verdict = sequencer.judge(number, number * 31)
        assert verdict is not Verdict.RESTART
        if verdict is Verdict.IN_ORDER:
            sequencer.accept(number, number * 31)
            accepted.append(number)
    assert accepted == list(range(len(accepted)))
