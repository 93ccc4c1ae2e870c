"""Percentiles."""

from __future__ import annotations

import pytest

from loadtest.report.percentiles import quantile, samples_needed, sound_quantile


def test_a_quantile_is_a_sample() -> None:
    """Of 1 to 100, the 90th percentile is 90: 90 of 100 do not exceed it."""
    values = [float(value) for value in range(100, 0, -1)]
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([7.0], 0.5) == 7.0


def test_no_values_have_no_quantile() -> None:
    """Rather than 0."""
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@pytest.mark.parametrize(("share", "needed"), [(0.5, 20), (0.9, 100), (0.95, 200), (0.99, 1_000), (0.999, 10_000)])
def test_a_percentile_needs_ten_samples_beyond_it(share: float, needed: int) -> None:
    """With fewer it is refused."""
    assert samples_needed(share) == needed
    assert sound_quantile([1.0] * (needed - 1), share) is None
    assert sound_quantile([1.0] * needed, share) == 1.0
