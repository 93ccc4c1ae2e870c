"""Which event comes when: a pure function of the seed.

Events come one at a time, so that what follows can be laid to one of them. A cycle has each kind once, in an order of
its own. Router 0 and replica 0 live through all of it: only a process that lives long shows a leak.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

REPLICAS, ROUTERS = 4, 2


class Kind(StrEnum):
    """What happens to a fleet that is run for months."""

    REPLICA_JOINED = "replica_joined"
    """One more, with an agent: the fleet grows."""
    REPLICA_LEFT = "replica_left"
    """That one goes: its agent drains it and says goodbye."""
    REPLICA_DRAINED = "replica_drained"
    """By an operator's order; idle, its engine is exchanged for a new one, and it takes requests again."""
    REPLICA_DIED = "replica_died"
    """Engine and agent at once (SIGKILL), as when a machine is lost; both come back after a while."""
    ENGINE_RESTARTED = "engine_restarted"
    """In place: SIGTERM, and at once it starts again, empty, beside the same agent."""
    AGENT_RESTARTED = "agent_restarted"
    ROUTER_RESTARTED = "router_restarted"
    """SIGTERM: it finishes what runs, and a new one reads all from Redis."""
    ROUTER_KILLED = "router_killed"
    REDIS_FAILED_OVER = "redis_failed_over"
    """A replica that missed the last writes is promoted."""
    REDIS_EMPTIED = "redis_emptied"
    """FLUSHALL."""
    CLIENTS_SLOW = "clients_slow"
    """Some read long streams much slower than they come."""
    CLIENTS_LEFT = "clients_left"
    """Many leave in the middle of their answers at once."""
    WEIGHTS_RELOADED = "weights_reloaded"
    """The routers' file has other weights of placement."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        kind: What happens.
        number: Of the replica or router that it strikes; of `weights_reloaded`, what the weight is set to.
        lasts_s: Seconds that who is struck stays away.
    """

    kind: Kind
    number: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.number}" + (f" for {self.lasts_s:.1f} s" if self.lasts_s else "")


_AWAY_S = {
    Kind.REPLICA_DIED: (1.0, 8.0),
    Kind.AGENT_RESTARTED: (0.0, 4.0),
    Kind.ROUTER_RESTARTED: (0.0, 3.0),
    Kind.ROUTER_KILLED: (0.0, 3.0),
    Kind.REDIS_FAILED_OVER: (0.1, 1.5),
}
_WEIGHTS = (10, 40)


def plan(seed: int) -> Iterator[Event]:
    """Yield events without end."""
    rng = random.Random(f"{seed}/churn")
    while True:
        kinds = rng.sample(list(Kind), len(Kind))
        joined, left = kinds.index(Kind.REPLICA_JOINED), kinds.index(Kind.REPLICA_LEFT)
        if left < joined:
            kinds[joined], kinds[left] = kinds[left], kinds[joined]
        for kind in kinds:
            yield Event(kind, _number(kind, rng), round(rng.uniform(*_AWAY_S.get(kind, (0.0, 0.0))), 2))


def _number(kind: Kind, rng: random.Random) -> int:
    if kind in (Kind.ROUTER_RESTARTED, Kind.ROUTER_KILLED):
        return rng.randrange(1, ROUTERS)
    if kind in (Kind.REPLICA_DRAINED, Kind.REPLICA_DIED, Kind.ENGINE_RESTARTED, Kind.AGENT_RESTARTED):
        return rng.randrange(1, REPLICAS)
    if kind is Kind.WEIGHTS_RELOADED:
        return rng.randint(*_WEIGHTS)
    return 0
