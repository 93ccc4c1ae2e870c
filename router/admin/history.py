"""What was counted, every few seconds of the last hour: a page that is opened has a past at once. Bounded."""

from __future__ import annotations

from collections import deque
from typing import Any

from router.telemetry.table import TTFT_SECONDS

EVERY_S = 5.0
KEPT_S = 3_600.0


class History:
    """A ring of totals (`router.telemetry.totals`), the newest last."""

    def __init__(self) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=int(KEPT_S / EVERY_S))

    def add(self, totals: dict[str, Any], at_unix_s: float) -> dict[str, Any]:
        """Keep a sample and return it as it is kept."""
        sample = {"at": round(at_unix_s, 3), **totals}
        self._samples.append(sample)
        return sample

    def to_dict(self) -> dict[str, Any]:
        """Return all samples for JSON, with the bounds of the buckets of `ttft`, in seconds."""
        return {"every_s": EVERY_S, "ttft_bounds_s": [*TTFT_SECONDS], "samples": [*self._samples]}
