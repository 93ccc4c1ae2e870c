"""`make bench-agent` measures what it says: a short run at a low rate, whose figures are sane and complete."""

from __future__ import annotations

from loadtest.bench.agent import Figures, measure
from loadtest.bench.agent_engine import STAMP_BITS, STAMPED, stamp_of


def test_a_hash_tells_when_its_frame_was_sent() -> None:
    """To the microsecond; other hashes tell nothing."""
    assert stamp_of(STAMPED | 5 << STAMP_BITS | 1_764_500_000_123_456) == 1_764_500_000.123456
    assert stamp_of(1 << 63) is None


def test_a_short_run_has_all_its_figures() -> None:
    """No block is lost, CPU and latency are measured, and the blocks are those that were asked for."""
    figures = measure("exact", 2_000, 1.0, 5_000.0)
    assert (figures.live_blocks, figures.behind_blocks) == (2_000, 0)
    assert figures.cpu_share > 0
    assert 0 <= figures.latency_p50_s < 5


def test_each_limit_fails_it() -> None:
    """CPU, latency, memory and lost frames are told each."""
    bad = Figures("mapped", 1, 1.0, 0.51, 0.016, 1.0, 171.0, 1)
    assert len(bad.failures()) == 4
    assert Figures("exact", 1, 1.0, 0.5, 0.015, 1.0, 110.0, 0).failures() == []
