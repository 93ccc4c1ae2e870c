"""Whether the generator kept up: where it did not, it measured itself.

Two signs. Requests that were sent later than intended wait in the generator. And a tick that comes late tells that
tokens too were seen later than they came, as both wait for the same event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.report.percentiles import quantile

TICK_S = 0.01
LIMIT_S = 0.010
"""Real seconds that 99 of 100 sends and ticks may be late; epoll's timers alone are up to 1 ms late."""
SHARE_OF_MEDIAN = 0.05
"""Where the median TTFT is long, being late by this share of it does no harm either."""


@dataclass(frozen=True, slots=True)
class Generator:
    """How the generator did, in real seconds.

    Attributes:
        sends: Requests that were sent in the measured time.
        late_p50_s: Sent later than intended; the median.
        late_p99_s: The same, exceeded by one in 100.
        late_max_s: The worst.
        lag_p99_s: Ticks of the event loop that were late, exceeded by one in 100.
        cpu_share: Of one core that the process used, 0 to about 1.
        limit_s: What was allowed.
        was_bottleneck: Whether it was exceeded.
    """

    sends: int
    late_p50_s: float
    late_p99_s: float
    late_max_s: float
    lag_p99_s: float
    cpu_share: float
    limit_s: float
    was_bottleneck: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def sentence(self) -> str:
        """Say it."""
        figures = (
            f"99% of {self.sends:,} requests sent within {self.late_p99_s * 1000:.1f} ms of their time (the worst "
            f"{self.late_max_s * 1000:.1f} ms), event loop {self.lag_p99_s * 1000:.1f} ms late at p99, "
            f"{self.cpu_share:.0%} of a core"
        )
        if not self.was_bottleneck:
            return f"the generator kept up: {figures}"
        return (
            f"THE GENERATOR WAS THE BOTTLENECK ({self.limit_s * 1000:.1f} ms allowed): {figures}. The times below are "
            "partly its own: send less, or share the load among more processes or machines"
        )


def judge(late_s: Sequence[float], lags_s: Sequence[float], median_ttft_s: float | None, cpu_share: float) -> Generator:
    """Judge one run; all in real seconds."""
    limit_s = max(LIMIT_S, SHARE_OF_MEDIAN * (median_ttft_s or 0.0))
    late_p99_s = quantile(late_s, 0.99) if late_s else 0.0
    lag_p99_s = quantile(lags_s, 0.99) if lags_s else 0.0
    return Generator(
        sends=len(late_s),
        late_p50_s=quantile(late_s, 0.5) if late_s else 0.0,
        late_p99_s=late_p99_s,
        late_max_s=max(late_s, default=0.0),
        lag_p99_s=lag_p99_s,
        cpu_share=cpu_share,
        limit_s=limit_s,
        was_bottleneck=max(late_p99_s, lag_p99_s) > limit_s,
    )


class Ticks:
    """Watches the event loop while it is open."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lags_s: list[float] = []
        self._cpu_s = 0.0
        self._begun_s = 0.0

    async def watch(self) -> None:
        """Tick until cancelled."""
        self.begin()
        while True:
            due_s = self._clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self.note(due_s)

    def begin(self) -> None:
        """Count CPU time from now on."""
        self._begun_s, self._cpu_s = time.monotonic(), time.process_time()

    def note(self, due_s: float) -> None:
        """Take a tick that was due then, by the clock."""
        self.lags_s.append(self._clock() - due_s)

    def cpu_share(self) -> float:
        """Return the share of one core that this process used since the first tick."""
        lasted_s = time.monotonic() - self._begun_s
        return (time.process_time() - self._cpu_s) / lasted_s if lasted_s > 0 else 0.0
