"""Who sends what when: lanes of sessions.

A lane is one sender. In a closed loop a fixed number of users take the next session as soon as they finished one, so
the load follows the system's speed; with open arrivals each session comes at its own time, however busy the system is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
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

    def times(self, factor: float) -> Stage:
        """Return the stage with that many times its arrivals."""
        end = None if self.end_rate_per_s is None else self.end_rate_per_s * factor
        return Stage(self.rate_per_s * factor, self.duration_s, end)

    def __str__(self) -> str:
        ramp = "" if self.end_rate_per_s is None else f"-{self.end_rate_per_s:g}"
        return f"{self.rate_per_s:g}{ramp}x{self.duration_s:g}"

    @property
    def peak_per_s(self) -> float:
        """The highest rate."""
        return max(self.rate_per_s, self.end_rate_per_s or 0.0)


_STAGE = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?x(\d+(?:\.\d+)?)")


def read_stages(text: str) -> tuple[Stage, ...]:
    """Read stages as people write them: `2x30,2-8x60` is 2 a second for 30 s, then from 2 to 8 within 60 s.

    Raises:
        ValueError: It is something else, or a stage has no duration.
    """
    stages = []
    for part in text.split(","):
        found = _STAGE.fullmatch(part.strip())
        if found is None or not float(found[3]):
            raise ValueError(f"{part.strip()!r} is no stage: RATExSECONDS or RATE-RATExSECONDS, as 2x30,2-8x60")
        stages.append(Stage(float(found[1]), float(found[3]), float(found[2]) if found[2] else None))
    return tuple(stages)


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
