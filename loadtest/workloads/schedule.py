"""Who sends what when: lanes of sessions.

A lane is one sender. In a closed loop a fixed number of users take the next session as soon as they finished one, so
the load follows the system's speed; with open arrivals each session comes at its own time, however busy the system is.
"""

from __future__ import annotations

import random
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
