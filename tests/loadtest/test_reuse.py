"""Hit-rate totals of a load test."""

from __future__ import annotations

from loadtest.reuse import ReuseTotals


def test_a_hit_rate_is_over_tokens() -> None:
    """(90 + 0) of (100 + 900) tokens are 9%."""
    totals = ReuseTotals()
    totals.add(100, 90)
    totals.add(900, 0)
    assert totals.sentence() == "hit rate: 9.0% (90 cached of 1,000 prompt tokens in 2 answers)"


def test_answers_that_do_not_tell_are_left_out_and_counted() -> None:
    """Unknown is not a miss."""
    totals = ReuseTotals()
    totals.add(100, 50)
    totals.add(100, None)
    assert totals.sentence() == "hit rate: 50.0% (50 cached of 100 prompt tokens in 1 answers; 1 told none)"


def test_an_endpoint_that_never_tells_has_no_hit_rate() -> None:
    """It says unknown rather than 0%."""
    totals = ReuseTotals()
    totals.add(100, None)
    assert totals.sentence() == "hit rate: unknown, 1 answers told no cached_tokens"


def test_workers_counts_add_up_at_the_master() -> None:
    """Each report carries what is new since the last one."""
    worker, master = ReuseTotals(), ReuseTotals()
    for cached in (10, 30):
        worker.add(100, cached)
        master.merge(worker.take())
    master.merge(worker.take())
    assert (master.prompt_tokens, master.cached_tokens, master.answers) == (200, 40, 2)
