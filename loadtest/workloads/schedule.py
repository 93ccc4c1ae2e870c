"""Who sends what when: lanes of sessions.

A lane is one sender. In a closed loop a fixed number of users take the next session as soon as they finished one, so
the load follows the system's speed; with open arrivals each session comes at its own time, however busy the system is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Lane(Generic[Item]):
    """One sender.

    Attributes:
        start_s: When it begins, in seconds after the start of the run.
        sessions: What it works through, one after the other. Lanes of a closed loop share one iterator.
    """

    start_s: float
    sessions: Iterator[Item]


def closed_loop(sessions: Iterable[Item], users: int, ramp_s: float = 0.0) -> list[Lane[Item]]:
    """Let `users` lanes (1 or more) share one queue of sessions; the first begins at once, the last after `ramp_s`."""
    queue = iter(sessions)
    step_s = ramp_s / max(1, users - 1)
    return [Lane(user * step_s, queue) for user in range(users)]


@dataclass(frozen=True, slots=True)
class Stage:
    """Arrivals for a while.

    Attributes:
        rate_per_s: Sessions a second, on average; 0: nobody comes.
        duration_s: For how long, over 0.
        end_rate_per_s: Where a ramp ends that begins at `rate_per_s`; None: the rate stays.
    """

    rate_per_s: float
    duration_s: float
    end_rate_per_s: float | None = None

    def rate_at(self, since_s: float) -> float:
        """Return the rate this long after the stage's beginning."""
        if self.end_rate_per_s is None:
            return self.rate_per_s
        return self.rate_per_s + (self.end_rate_per_s - self.rate_per_s) * since_s / self.duration_s

    @property
    def peak_per_s(self) -> float:
        """The highest rate."""
        return max(self.rate_per_s, self.end_rate_per_s or 0.0)


def arrival_times(stages: Iterable[Stage], rng: random.Random) -> Iterator[float]:
    """Yield when sessions arrive, as a Poisson process of changing rate, in seconds after the first stage's begin.

    Ramps are thinned from their highest rate (Lewis and Shedler, 1979).

    Raises:
        ValueError: A rate is below 0, or a stage has no duration.
    """
    begin_s = 0.0
    for stage in stages:
        if min(stage.rate_per_s, stage.end_rate_per_s or 0.0) < 0 or stage.duration_s <= 0:
            raise ValueError(f"a stage needs rates of 0 or more and a duration over 0 s, not {stage}")
        peak = stage.peak_per_s
        since_s = rng.expovariate(peak) if peak else stage.duration_s
        while since_s < stage.duration_s:
            if stage.end_rate_per_s is None or rng.random() * peak < stage.rate_at(since_s):
                yield begin_s + since_s
            since_s += rng.expovariate(peak)
        begin_s += stage.duration_s


def staged_arrivals(sessions: Iterable[Item], stages: Sequence[Stage], seed: int) -> Iterator[Lane[Item]]:
    """Let sessions arrive by stages until these or the sessions end."""
    times = arrival_times(stages, random.Random(f"{seed}/arrivals"))
    for start_s, session in zip(times, sessions, strict=False):
        yield Lane(start_s, iter((session,)))


def open_arrivals(sessions: Iterable[Item], rate_per_s: float, seed: int) -> list[Lane[Item]]:
    """Let sessions arrive as a Poisson process of `rate_per_s` (over 0) a second.

    Raises:
        ValueError: The rate is not over 0.
    """
    if rate_per_s <= 0:
        raise ValueError("the rate of arrivals must be over 0 a second")
    rng = random.Random(f"{seed}/arrivals/{rate_per_s}")
    lanes: list[Lane[Item]] = []
    now_s = 0.0
    for session in sessions:
        now_s += rng.expovariate(rate_per_s)
        lanes.append(Lane(now_s, iter((session,))))
    return lanes
