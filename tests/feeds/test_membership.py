"""Rules of absence, with the clock in hand."""

from __future__ import annotations

import pytest

from router.feeds.membership import Departures, FeedHealth, Standing


@pytest.fixture
def health() -> FeedHealth:
    """A feed with leases of 10 s, up since the start at 0."""
    one = FeedHealth(10.0)
    one.link_up(0.0, first=True)
    return one


def test_a_missing_lease_lapses_after_a_lease_time(health):
    """Missing at once, lapsed after 10 s; without failed probes it is never forgotten."""
    assert health.standing(100.0, 100.0, engine_failed=False) is Standing.PRESENT
    assert health.standing(100.0, 109.9, engine_failed=False) is Standing.MISSING
    assert health.standing(100.0, 110.0, engine_failed=False) is Standing.LAPSED
    assert health.standing(100.0, 100_000.0, engine_failed=False) is Standing.LAPSED


def test_only_a_failed_engine_is_forgotten(health):
    """With its probes failing too, a replica is withdrawn after six lease times."""
    assert health.standing(100.0, 159.9, engine_failed=True) is Standing.LAPSED
    assert health.standing(100.0, 160.0, engine_failed=True) is Standing.FORGOTTEN


def test_nobody_is_missed_while_redis_is_lost(health):
    """Membership is frozen without the link, however long, whatever probes say."""
    health.link_down()
    assert health.standing(0.0, 100_000.0, engine_failed=True) is Standing.MISSING


def test_three_lease_times_of_grace_after_the_link_is_back(health):
    """Agents get 30 s to renew their leases; a second report of the link does not prolong it."""
    health.link_down()
    health.link_up(1000.0, first=False)
    health.link_up(1020.0, first=False)
    assert health.standing(0.0, 1029.9, engine_failed=False) is Standing.MISSING
    assert health.standing(0.0, 1030.0, engine_failed=False) is Standing.LAPSED


def test_an_emptied_redis_grants_the_same_grace(health):
    """All leases gone at once is Redis' doing."""
    health.emptied(500.0)
    assert health.standing(490.0, 529.9, engine_failed=False) is Standing.MISSING
    assert health.standing(490.0, 530.0, engine_failed=False) is Standing.LAPSED


def test_no_more_than_thirty_percent_leave_on_their_word():
    """Of ten, three may say goodbye within a lease time; the fourth must fail its probes, or wait for the next."""
    departures, left = Departures(10.0), 0
    for _ in range(10):
        left += departures.may_leave(10 - left, 0.0)
    assert left == 3
    assert departures.may_leave(7, 10.0)


def test_a_fleet_of_one_may_leave():
    """The share is no trap for small fleets: one may always go."""
    departures = Departures(10.0)
    assert departures.may_leave(2, 0.0)
    assert not departures.may_leave(1, 1.0)
