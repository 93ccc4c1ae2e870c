"""Locust's number of users over time: stages of users, or as many as there are workers while sessions arrive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from locust import LoadTestShape

from loadtest.workloads.schedule import Stage


class Ramp(LoadTestShape):
    """Users by stages: a stage's rates are numbers of users here. Without stages: one a worker, until all is sent."""

    abstract = True  # chosen by our options, not found by locust
    use_common_options = True

    def __init__(self, stages: Sequence[Stage], workers: Callable[[], int], is_over: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stages = stages
        self._workers = workers
        self._is_over = is_over

    def tick(self) -> tuple[int, float] | None:
        """Return users and how many of them may start in a second; None: the test is over."""
        if self._is_over():
            return None
        if not self._stages:
            return self._workers(), self._workers()
        since_s: float = self.get_run_time()  # type: ignore[no-untyped-call]
        for stage in self._stages:
            if since_s < stage.duration_s:
                # All at once: the ramp is in the number of users.
                return math.ceil(stage.rate_at(since_s)), max(1, math.ceil(stage.peak_per_s))
            since_s -= stage.duration_s
        return None
