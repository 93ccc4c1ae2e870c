"""An engine's own counters, as a router hears them."""

from __future__ import annotations

import pytest

from router.fleet.cache_counts import CacheCounts


def test_what_was_before_the_router_does_not_count() -> None:
    """The first figures are where counting begins."""
    counts = CacheCounts()
    assert not counts.is_known
    counts.told(1_000, 600, 0.0)
    assert (counts.is_known, counts.queries, counts.hits, counts.lately) == (True, 0, 0, None)
    counts.told(1_400, 900, 1.0)
    assert (counts.queries, counts.hits, counts.lately) == (400, 300, 0.75)


def test_an_engine_that_restarts_loses_nothing() -> None:
    """Its counters begin at zero: what they show is new."""
    counts = CacheCounts()
    counts.told(1_000, 600, 0.0)
    counts.told(1_400, 900, 1.0)
    counts.told(100, 0, 2.0)
    assert (counts.queries, counts.hits) == (500, 300)


def test_the_share_of_lately_forgets() -> None:
    """Half of it hit for a minute, then nothing for two: the share is near zero."""
    counts = CacheCounts()
    for second in range(61):
        counts.told(second * 100, second * 50, float(second))
    assert counts.lately == pytest.approx(0.5)
    for second in range(61, 182):
        counts.told(second * 100, 3_000, float(second))
    assert counts.lately == pytest.approx(0.5 * 0.13, abs=0.05)


def test_ranks_are_added_up() -> None:
    """Those that are known; none known is none."""
    known, silent = CacheCounts(), CacheCounts()
    known.told(0, 0, 0.0)
    known.told(40, 10, 1.0)
    whole = CacheCounts.together([known, silent, known])
    assert whole is not None
    assert (whole.queries, whole.hits, whole.lately) == (80, 20, 0.25)
    assert CacheCounts.together([silent]) is None
