"""The retry budget, by arithmetic."""

from __future__ import annotations

from router.scheduling.retry_budget import RetryBudget


def taken(budget: RetryBudget, times: int, requests: int, now_s: float) -> int:
    return sum(budget.take(requests, now_s) for _ in range(times))


def test_a_burst_has_the_reserve() -> None:
    """A replica that dies fails all that are on their way to it, at one time."""
    assert taken(RetryBudget(0.1, 100), 500, 0, 0.0) == 100


def test_then_a_tenth_of_the_requests_and_ten_a_second() -> None:
    """With all replicas down, retries stay a small part of the traffic: 200 requests/s for 60 s."""
    budget, retries = RetryBudget(0.1, 100), 0
    for second in range(61):
        retries += taken(budget, 400, 200 * second, float(second))
    assert retries == 100 + 60 * (20 + 10)


def test_what_is_not_used_is_kept_up_to_the_reserve() -> None:
    """And no more."""
    budget = RetryBudget(0.1, 20)
    assert taken(budget, 50, 0, 0.0) == 20
    assert taken(budget, 50, 10**6, 10**6) == 20


def test_without_share_and_reserve_time_alone_gives_one() -> None:
    """`budget_reserve: 0` still lets a single retry pass now and then."""
    budget = RetryBudget(0.0, 0)
    assert taken(budget, 5, 1_000, 0.0) == 0
    assert taken(budget, 5, 2_000, 1.0) == 1
