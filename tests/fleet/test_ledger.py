"""The in-flight ledger: tokens that wait, melt and are released once."""

from __future__ import annotations

import pytest

from router.fleet.ledger import UnitLoad


def test_tokens_count_whole_when_placed() -> None:
    """A request that was just placed has everything before it."""
    load = UnitLoad(1_000)
    load.reserve(500, 0.0)
    load.reserve(300, 0.0)
    assert load.backlog_tokens(0.0) == 800


def test_only_the_one_being_computed_melts() -> None:
    """After 0.2 s at 1,000 tokens/s 200 of the first 500 are gone; the second waits whole."""
    load = UnitLoad(1_000)
    load.reserve(500, 0.0)
    load.reserve(300, 0.0)
    assert load.backlog_tokens(0.2) == pytest.approx(600)


def test_what_has_not_answered_never_melts_under_five_percent() -> None:
    """The engine has not said that it is done."""
    load = UnitLoad(1_000)
    load.reserve(500, 0.0)
    assert load.backlog_tokens(100.0) == pytest.approx(25)


def test_the_first_token_ends_the_prompt_but_not_the_request() -> None:
    """From then on it costs as a running request."""
    load = UnitLoad(1_000)
    reservation = load.reserve(500, 0.0)
    load.first_token(reservation, 0.5)
    assert load.backlog_tokens(0.5) == 0
    assert load.requests == 1


def test_speed_is_learned_from_first_tokens() -> None:
    """1,000 tokens in half a second are 2,000 tokens/s; one sample moves the belief half way."""
    load = UnitLoad(1_000)
    load.first_token(load.reserve(1_000, 0.0), 0.5)
    load.reserve(1, 9.0)
    assert load.prefill_tokens_per_s == pytest.approx(1_500)


def test_the_next_in_line_is_timed_from_when_its_turn_came() -> None:
    """Waiting is not computing: the second's stretch begins with the first's first token."""
    load = UnitLoad(1_000)
    first, second = load.reserve(1_000, 0.0), load.reserve(1_000, 0.0)
    load.first_token(first, 1.0)
    load.first_token(second, 2.0)
    load.reserve(1, 9.0)
    assert load.samples == 2
    assert load.prefill_tokens_per_s == pytest.approx(1_000)


def test_prompts_of_one_step_teach_together() -> None:
    """Four prompts of 500 tokens are computed in one step of a second: 2,000 tokens/s, not millions."""
    load = UnitLoad(2_000)
    for reservation in [load.reserve(500, 0.0) for _ in range(4)]:
        load.first_token(reservation, 1.0)
    load.reserve(1, 9.0)
    assert load.samples == 1
    assert load.prefill_tokens_per_s == pytest.approx(2_000)


def test_a_guessed_prompt_teaches_nothing() -> None:
    """20,000 tokens that were cached after all, unknown to the router, are no million tokens a second."""
    load = UnitLoad(8_000)
    for number in range(10):
        load.first_token(load.reserve(20_000, number, teaches=False), number + 0.02)
    assert load.prefill_tokens_per_s == 8_000


def test_a_request_that_ended_without_a_first_token_spoils_its_stretch() -> None:
    """It may or may not have been computed."""
    load = UnitLoad(1_000)
    gone, stays = load.reserve(9_000, 0.0), load.reserve(500, 0.0)
    load.release(gone, 5.0)
    load.first_token(stays, 5.5)
    load.reserve(1, 9.0)
    assert load.prefill_tokens_per_s == pytest.approx(1_000)


def test_an_answer_that_is_not_streamed_counts_as_computed_when_its_tokens_melted() -> None:
    """It shows no first token, and must not block the view of those behind it."""
    load = UnitLoad(1_000)
    load.reserve(500, 0.0, observable=False)
    load.reserve(400, 0.0)
    assert load.backlog_tokens(0.7) == pytest.approx(200)


def test_a_release_counts_once() -> None:
    """However often a request ends, the count comes back to zero and not below."""
    load = UnitLoad(1_000)
    reservation = load.reserve(500, 0.0)
    load.release(reservation, 1.0)
    load.release(reservation, 2.0)
    assert (load.requests, load.backlog_tokens(2.0)) == (0, 0)


def test_an_old_release_can_not_touch_a_new_count() -> None:
    """A replica that left and came back under its name has a new ledger (RTE-03)."""
    old, new = UnitLoad(1_000), UnitLoad(1_000)
    reservations = [old.reserve(10, 0.0) for _ in range(10)]
    new.reserve(10, 1.0)
    for reservation in reservations:
        reservation.load.release(reservation, 2.0)
    assert (old.requests, new.requests) == (0, 1)


def test_the_oldest_prompt_without_a_first_token_tells_how_long_it_waits() -> None:
    """From its placing to its first token; nothing where nothing waits."""
    load = UnitLoad(1_000)
    assert load.oldest_waiting_s(9.0) == 0.0
    first = load.reserve(500, 1.0)
    load.reserve(500, 3.0)
    assert load.oldest_waiting_s(9.0) == 8.0
    load.first_token(first, 9.0)
    assert load.oldest_waiting_s(9.0) == 6.0


def test_whole_prompts_count_until_their_requests_end() -> None:
    """What is cached of a prompt is held, too; a first token changes nothing of it."""
    load = UnitLoad(1_000)
    first, second = load.reserve(100, 0.0, context_tokens=900), load.reserve(50, 0.0)
    assert (load.context_tokens, load.placed_tokens) == (950, 150)
    load.first_token(first, 1.0)
    assert load.context_tokens == 950
    load.release(first, 2.0)
    load.release(first, 2.0)
    assert (load.context_tokens, load.placed_tokens) == (50, 150)
    load.release(second, 3.0)
    assert load.context_tokens == 0
