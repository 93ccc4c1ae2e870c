"""Percentiles with what they are worth: how many samples they need, and between which samples they lie.

A percentile is the smallest sample that at least its share of the samples do not exceed (no interpolation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BEYOND_AT_LEAST = 10
"""Samples that must lie beyond a percentile on its thinner side; with fewer it is one unlucky request's."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile; `share` is 0 to 1.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values have no quantile")
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


def samples_needed(share: float) -> int:
    """Return how many samples a quantile needs: 20 the median, 100 the 90th percentile, 1,000 the 99th."""
    return math.ceil(BEYOND_AT_LEAST / min(share, 1 - share) - 1e-9)


def sound_quantile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile, or None where there are too few values for it."""
    return quantile(values, share) if len(values) >= samples_needed(share) else None
