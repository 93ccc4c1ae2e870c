"""Limits of tenants, by arithmetic on a clock that the test holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import RateLimitedError
from router.request.auth.buckets import Bucket
from router.request.auth.limits import TenantLimits
from router.request.auth.shares import share_of
from router.request.auth.tenants import Tenant

ACME = Tenant("acme", requests_per_minute=60, tokens_per_minute=6_000)


def headers_of(limits: TenantLimits, now_s: float, tenant: Tenant = ACME) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in limits.headers(tenant, now_s)}


def test_a_minute_s_worth_may_come_at_once_and_then_one_a_second() -> None:
    """60 a minute."""
    limits = TenantLimits()
    for _ in range(60):
        limits.take_request(ACME, 10.0)
    with pytest.raises(RateLimitedError) as caught:
        limits.take_request(ACME, 10.0)
    assert caught.value.retry_after_s == 1
    assert caught.value.http_status == 429
    limits.take_request(ACME, 11.0)
    with pytest.raises(RateLimitedError):
        limits.take_request(ACME, 11.5)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 40)), max_size=60), st.floats(1, 1000))
def test_no_more_is_given_than_a_minute_s_worth_and_what_time_adds(
    asked: list[tuple[float, float]], limit: float
) -> None:
    """Whatever is asked and when, as long as no request is larger than the bucket."""
    bucket, now_s, given_units = Bucket(limit, 0.0), 0.0, 0.0
    for pause_s, units in asked:
        now_s += pause_s
        units = min(units, limit)
        if not bucket.take(units, now_s):
            given_units += units
        assert given_units <= limit + limit / 60 * now_s + 1e-6 * limit


def test_the_time_to_wait_is_long_enough_and_not_longer() -> None:
    """What Retry-After says is true."""
    bucket = Bucket(120, 0.0)
    assert bucket.take(120, 0.0) == 0
    wait_s = bucket.take(30, 0.0)
    assert wait_s == pytest.approx(15.0)
    assert bucket.take(30, wait_s - 0.01) > 0
    assert bucket.take(30, wait_s) == 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    """Time only adds."""
    bucket = Bucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.remaining(50.0) == pytest.approx(0.0)
    assert bucket.remaining(101.0) == pytest.approx(1.0)


def test_tokens_are_reserved_and_corrected_by_what_was_used() -> None:
    """5,000 reserved, 1,200 used: 4,800 are left."""
    limits = TenantLimits()
    reservation = limits.reserve_tokens(ACME, 5_000, 0.0)
    assert reservation is not None
    assert headers_of(limits, 0.0)["x-ratelimit-remaining-tokens"] == "1000"
    with pytest.raises(RateLimitedError) as caught:
        limits.reserve_tokens(ACME, 1_500, 0.0)
    assert caught.value.retry_after_s == 5  # 500 more at 100 a second
    reservation.settle(1_200, 0.0)
    reservation.settle(0, 0.0)
    assert headers_of(limits, 0.0)["x-ratelimit-remaining-tokens"] == "4800"


def test_using_more_than_was_reserved_is_paid_for_later() -> None:
    """An answer without a limit of its own can't be foreseen."""
    limits = TenantLimits()
    reservation = limits.reserve_tokens(ACME, 100, 0.0)
    assert reservation is not None
    reservation.settle(8_000, 0.0)
    assert headers_of(limits, 0.0)["x-ratelimit-remaining-tokens"] == "0"
    with pytest.raises(RateLimitedError) as caught:
        limits.reserve_tokens(ACME, 100, 0.0)
    assert caught.value.retry_after_s == 21  # 2,000 overdrawn and 100 to use, at 100 a second


def test_a_request_that_can_never_pass_is_told_so() -> None:
    """No Retry-After: waiting would not help."""
    with pytest.raises(RateLimitedError) as caught:
        TenantLimits().reserve_tokens(ACME, 6_001, 0.0)
    assert caught.value.retry_after_s is None


def test_headers_are_openai_s() -> None:
    """Limit, remaining, and the time until all is there again."""
    limits = TenantLimits()
    assert headers_of(limits, 0.0)["x-ratelimit-reset-requests"] == "0ms"
    for _ in range(59):
        limits.take_request(ACME, 0.0)
    limits.reserve_tokens(ACME, 25, 0.0)
    assert headers_of(limits, 0.0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "59s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5975",
        "x-ratelimit-reset-tokens": "250ms",
    }
    limits.reserve_tokens(ACME, 5_975, 0.0)
    limits.take_request(ACME, 0.0)
    assert headers_of(limits, 0.0)["x-ratelimit-reset-requests"] == "1m0s"


def test_no_limit_no_headers() -> None:
    """And no state."""
    free, limits = Tenant("free"), TenantLimits()
    for _ in range(1_000):
        limits.take_request(free, 0.0)
        assert limits.reserve_tokens(free, 10**9, 0.0) is None
    assert headers_of(limits, 0.0, free) == {}
    assert limits.asked() == {}


def test_another_limit_gives_nothing_that_was_not_earned() -> None:
    """Reading the configuration anew is no way to fill the bucket."""
    limits = TenantLimits()
    for _ in range(60):
        limits.take_request(ACME, 0.0)
    more = Tenant("acme", requests_per_minute=600)
    with pytest.raises(RateLimitedError):
        limits.take_request(more, 0.0)
    for _ in range(10):
        limits.take_request(more, 1.0)
    with pytest.raises(RateLimitedError):
        limits.take_request(more, 1.0)


def test_a_share_holds_a_router_to_its_part() -> None:
    """Half of 60: 30 at once, then one in two seconds."""
    limits = TenantLimits()
    limits.take_request(ACME, 0.0)
    limits.share({("acme", "requests"): 0.5}, 0.0)
    for _ in range(30):
        limits.take_request(ACME, 0.0)
    with pytest.raises(RateLimitedError) as caught:
        limits.take_request(ACME, 0.0)
    assert caught.value.retry_after_s == 2
    assert headers_of(limits, 0.0)["x-ratelimit-limit-requests"] == "60"


def test_forgotten_tenants_hold_no_memory() -> None:
    """After the configuration was read anew."""
    limits = TenantLimits()
    limits.take_request(ACME, 0.0)
    limits.follow([Tenant("beta"), Tenant("gamma", requests_per_minute=6)], 0.0)
    assert limits.per_minute() == {("gamma", "requests"): 6}
    limits.follow([], 0.0)
    assert limits.asked() == {}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.floats(1, 1e6))
def test_all_routers_shares_are_the_limit(asked: list[float], limit: float) -> None:
    """No request of a tenant's is given twice, none is lost, and every router may begin."""
    shares = [share_of(own, asked[:at] + asked[at + 1 :], limit) for at, own in enumerate(asked)]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) > 0


def test_shares_follow_what_is_asked() -> None:
    """A router alone has all; a small demand is served in full beside a huge one."""
    assert share_of(0, [], 60) == pytest.approx(1.0)
    assert share_of(1e9, [], 60) == pytest.approx(1.0)
    assert share_of(0, [0, 0, 0], 60) == pytest.approx(0.25)
    small, huge = share_of(10, [1e6], 100), share_of(1e6, [10], 100)
    assert small == pytest.approx(0.10 + 0.025)
    assert huge == pytest.approx(0.85 + 0.025)
