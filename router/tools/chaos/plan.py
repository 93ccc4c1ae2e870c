"""Which fault strikes whom when: a pure function of the seed.

A run is rounds. In each, faults begin at their times and are over by its end; then traffic pauses and blocks are
compared. Two faults may overlap, but never on one target, and of replicas at most two are out at once: what a fleet
does without any replica is no question.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can happen. Processes that are killed or ended are started again, under the same name and address."""

    ENGINE_KILLED = "engine_killed"
    """SIGKILL; it starts again with an empty cache and its batches numbered from 0."""
    ENGINE_ENDED = "engine_ended"
    """SIGTERM."""
    ENGINE_HUNG = "engine_hung"
    """SIGSTOP, later SIGCONT."""
    ENGINE_HUNG_KILLED = "engine_hung_killed"
    """SIGSTOP, later SIGKILL."""
    ENGINE_RESET = "engine_reset"
    """/reset_prefix_cache: works when nothing runs there, as with vLLM."""
    AGENT_KILLED = "agent_killed"
    AGENT_ENDED = "agent_ended"
    """SIGTERM: it says goodbye, and the replica leaves until it is back."""
    AGENT_HUNG = "agent_hung"
    ROUTER_KILLED = "router_killed"
    ROUTER_ENDED = "router_ended"
    """SIGTERM: it drains."""
    ROUTER_HUNG = "router_hung"
    REDIS_KILLED = "redis_killed"
    """It starts again empty, at the same address."""
    REDIS_HUNG = "redis_hung"
    REDIS_EMPTIED = "redis_emptied"
    """FLUSHALL."""
    REDIS_REPLACED = "redis_replaced"
    """Another, empty one stands in its place."""
    REDIS_FAILED_OVER = "redis_failed_over"
    """A replica that missed the last writes takes its place."""
    LINK_CUT = "link_cut"
    """Connections to Redis are closed."""
    LINK_RESET = "link_reset"
    LINK_STALLED = "link_stalled"
    """Nothing passes in either direction, and connections stay open."""
    LINK_REFUSED = "link_refused"
    """Connections are reset, and new ones at once."""
    FRAMES_DROPPED = "frames_dropped"
    """Event messages never reach the agent."""
    FRAMES_REORDERED = "frames_reordered"
    FRAMES_DOUBLED = "frames_doubled"
    FRAMES_TAIL_DROPPED = "frames_tail_dropped"
    """Nothing reaches the agent from here to the end of the round's traffic: no later number shows what is missing."""
    FRAMES_CUT = "frames_cut"
    """The agent's event connection is reset."""
    REPLAY_STALLED = "replay_stalled"
    """The engine's replay does not answer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at_s: Seconds after its round's start.
        kind: What happens.
        target: Whom it strikes: `engine-0`, `agent-0`, `router-0`, `redis`, `link-agent-0`, `link-router-0`, `links`
            (all of them), `frames-0`, `replay-0`, `tail-0` (the last messages of `frames-0`).
        lasts_s: Seconds until it is undone, or until what ended is started again.
        messages: Event messages struck.
    """

    at_s: float
    kind: Kind
    target: str
    lasts_s: float = 0.0
    messages: int = 0

    def __str__(self) -> str:
        more = f" for {self.lasts_s:.1f} s" if self.lasts_s else f" ({self.messages})" if self.messages else ""
        return f"{self.at_s:5.1f} s {self.kind} {self.target}{more}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """How often a kind comes (relative weight), whom it strikes, and for how long (seconds)."""

    weight: float
    target: str
    lasts_s: tuple[float, float] = (0.0, 0.0)
    messages: tuple[int, int] = (0, 0)
    rest_s: float = 0.0
    """Until the target may be struck again, beyond the fault itself: a process takes a while to start."""


_START_S = 4.0
RULES: dict[Kind, _Rule] = {
    Kind.ENGINE_KILLED: _Rule(4, "engine", (0.0, 4.0), rest_s=_START_S),
    Kind.ENGINE_ENDED: _Rule(2, "engine", (0.0, 4.0), rest_s=_START_S),
    Kind.ENGINE_HUNG: _Rule(2, "engine", (0.3, 6.0)),
    Kind.ENGINE_HUNG_KILLED: _Rule(2, "engine", (0.3, 6.0), rest_s=_START_S),
    Kind.ENGINE_RESET: _Rule(3, "engine"),
    Kind.AGENT_KILLED: _Rule(3, "agent", (0.0, 5.0), rest_s=_START_S),
    Kind.AGENT_ENDED: _Rule(2, "agent", (0.0, 5.0), rest_s=_START_S),
    Kind.AGENT_HUNG: _Rule(2, "agent", (0.3, 12.0)),
    Kind.ROUTER_KILLED: _Rule(2, "router", (0.0, 3.0), rest_s=_START_S),
    Kind.ROUTER_ENDED: _Rule(2, "router", (0.0, 3.0), rest_s=_START_S),
    Kind.ROUTER_HUNG: _Rule(1, "router", (0.3, 6.0)),
    Kind.REDIS_KILLED: _Rule(1, "redis", (0.0, 6.0), rest_s=1.0),
    Kind.REDIS_HUNG: _Rule(1, "redis", (0.3, 8.0)),
    Kind.REDIS_EMPTIED: _Rule(2, "redis", rest_s=1.0),
    Kind.REDIS_REPLACED: _Rule(1, "redis", rest_s=1.0),
    Kind.REDIS_FAILED_OVER: _Rule(2, "redis", (0.1, 1.5), rest_s=2.0),
    Kind.LINK_CUT: _Rule(2, "link"),
    Kind.LINK_RESET: _Rule(2, "link"),
    Kind.LINK_STALLED: _Rule(2, "link", (0.3, 8.0)),
    Kind.LINK_REFUSED: _Rule(2, "link", (0.3, 8.0)),
    Kind.FRAMES_DROPPED: _Rule(4, "frames", messages=(1, 5), rest_s=1.0),
    Kind.FRAMES_REORDERED: _Rule(3, "frames", (1.0, 1.0), messages=(2, 4), rest_s=1.0),
    Kind.FRAMES_DOUBLED: _Rule(2, "frames", messages=(1, 3), rest_s=1.0),
    Kind.FRAMES_CUT: _Rule(2, "frames", rest_s=1.0),
    Kind.REPLAY_STALLED: _Rule(2, "replay", (0.3, 5.0)),
}
TAIL_S = 1.5
"""Before the end of a round, in every other one, some replicas' last event messages are lost."""
MEAN_GAP_S = 1.1
MAX_REPLICAS_OUT = 2


def takes_replica_out(kind: Kind) -> bool:
    """Tell whether the replica can't answer, or is not in the fleet, while the fault lasts."""
    return kind is Kind.AGENT_ENDED or (kind.startswith("engine_") and kind is not Kind.ENGINE_RESET)


def plan(seed: int, number: int, seconds: float, replicas: int = 4, routers: int = 2) -> tuple[Fault, ...]:
    """Return the faults of one round, by their times.

    Args:
        seed: Of the run.
        number: Of the round.
        seconds: In which all of its faults begin and are over.
    """
    rng = random.Random(f"{seed}/faults/{number}")
    faults: list[Fault] = []
    at_s = rng.expovariate(1 / MEAN_GAP_S)
    while at_s < seconds:
        kind = rng.choices(list(RULES), weights=[rule.weight for rule in RULES.values()])[0]
        rule = RULES[kind]
        fault = Fault(
            round(at_s, 2),
            kind,
            _target(rule.target, rng, replicas, routers),
            round(min(rng.uniform(*rule.lasts_s), seconds - at_s), 2),
            rng.randint(*rule.messages),
        )
        if _fits(fault, faults):
            faults.append(fault)
        at_s += rng.expovariate(1 / MEAN_GAP_S)
    if rng.random() < 0.5:
        struck = rng.sample(range(replicas), 2)
        faults += [Fault(seconds - TAIL_S, Kind.FRAMES_TAIL_DROPPED, f"tail-{number}") for number in struck]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _target(kind: str, rng: random.Random, replicas: int, routers: int) -> str:
    if kind == "redis":
        return kind
    if kind == "link":
        one = [f"link-agent-{n}" for n in range(replicas)] + [f"link-router-{n}" for n in range(routers)]
        return rng.choice([*one, "links", "links"])
    return f"{kind}-{rng.randrange(routers if kind == 'router' else replicas)}"


def _fits(fault: Fault, others: Sequence[Fault]) -> bool:
    running = [other for other in others if _over_s(other) > fault.at_s]
    if any(_same(fault.target, other.target) for other in running):
        return False
    if fault.target.startswith("router") and any(other.target.startswith("router") for other in running):
        return False  # clients use a router that lives
    out = {other.target[-1] for other in running if takes_replica_out(other.kind)}
    return not takes_replica_out(fault.kind) or len(out | {fault.target[-1]}) <= MAX_REPLICAS_OUT


def _over_s(fault: Fault) -> float:
    return fault.at_s + fault.lasts_s + RULES[fault.kind].rest_s


def _same(one: str, other: str) -> bool:
    links = one.startswith("link") and other.startswith("link")
    return one == other or (links and "links" in (one, other))
