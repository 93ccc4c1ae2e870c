"""A replica and its units, as the router sees them now."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from router.fleet.cache_counts import CacheCounts
from router.fleet.facts import EngineLoad, ServedModel, Trust
from router.fleet.ledger import UnitLoad
from router.kv.schemes import Scheme


class ReplicaState(StrEnum):
    """Whether a replica may take a request, and if not, why."""

    READY = "ready"
    WARMING = "warming"
    DRAINING = "draining"
    EJECTED = "ejected"
    DOWN = "down"


FRESH_S = 5.0
"""An engine's own figures are believed for this long."""


@dataclass(slots=True, eq=False)
class Unit:
    """A replica's rank: the owner of one prefix cache.

    Attributes:
        slot: Its place in the index; free for another unit once this one is withdrawn.
        serial: Its number, which no other unit ever gets.
        load: The engine's own figures; None is unknown, never idle.
        in_flight: What the router has placed here and what of it is not computed yet.
        sibling_requests: What the router's other worker processes have placed here.
        sibling_tokens: What of that is not computed yet, in uncached prompt tokens.
        peer_requests: What the fleet's other routers have placed here, as they told it.
        peer_tokens: What of that is not computed yet.
        new_since_s: When it joined a fleet that was there already; None: it was there when the router began.
        foreign_requests: Requests that the engine counted in its last figures beyond those of all known routers.
        cache_counts: What its engine counted itself.
        placed_at_report_tokens: `in_flight.placed_tokens` when the last figures came.
    """

    unit_id: str
    rank: int
    slot: int
    serial: int
    replica: Replica
    in_flight: UnitLoad
    scheme: Scheme | None = None
    trust: Trust = Trust.APPROXIMATE
    num_blocks: int | None = None
    reason: str | None = None
    whole: bool = True
    strides: tuple[tuple[int, int], ...] = ()
    tails: tuple[tuple[int, int, int], ...] = ()
    load: EngineLoad | None = None
    blocks_as_of_s: float | None = None
    sibling_requests: int = 0
    sibling_tokens: float = 0.0
    peer_requests: int = 0
    peer_tokens: float = 0.0
    foreign_requests: int = 0
    new_since_s: float | None = None
    cache_counts: CacheCounts = field(default_factory=CacheCounts)
    placed_at_report_tokens: int = 0

    def held_tokens(self, now_s: float) -> float:
        """Return the tokens of cache that requests hold: as the engine says, and what was placed here since.

        The engine counts what requests share once, and other routers' requests, too. Where it does not tell, it is the
        prompts that this router has placed here.
        """
        load = self.load
        if load is None or self.num_blocks is None or self.scheme is None or now_s - load.at_s > FRESH_S:
            return self.in_flight.context_tokens
        reported = load.kv_usage * self.num_blocks * self.scheme.block_size
        return reported + self.in_flight.placed_tokens - self.placed_at_report_tokens

    def queue_s(self, now_s: float) -> float:
        """Return how long what all known routers have placed here takes to be computed, at the speed learned."""
        tokens = self.in_flight.backlog_tokens(now_s) + self.sibling_tokens + self.peer_tokens
        return tokens / self.in_flight.prefill_tokens_per_s


@dataclass(slots=True, eq=False)
class Replica:
    """An engine process that requests can be sent to."""

    replica_id: str
    url: str
    source: str
    engine: str = ""
    models: dict[str, ServedModel] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    draining: bool = False
    down_reason: str | None = None
    held_until_s: float | None = None
    """Set while it joins and others take its requests, as it gets warm."""
    failures_in_a_row: int = 0
    ejected_until_s: float | None = None
    ejected_for_s: float = 0.0
    """Its last pause: the next is twice as long if the probe after it fails."""
    probe_until_s: float | None = None
    """Set while one request probes it after a pause."""
    ejections: int = 0
    refused_connections: bool = False
    """Its last failure was that it could not be connected to: a probe that passes shows that this is over."""
    address: tuple[str, int, bool] = ("", 0, False)
    """Host, port, and whether it is spoken to by TLS."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.address = (parts.hostname or "", parts.port or 80, parts.scheme == "https")

    @property
    def troubled(self) -> bool:
        """Whether its state can be any but READY, now or later."""
        if self.draining or self.down_reason is not None:
            return True
        return self.ejected_until_s is not None or self.held_until_s is not None

    def asked_model(self, name: str | None) -> str:
        """Return the model that a request is for: the one it names, else the one that the engine takes by default."""
        return name if name is not None else next(iter(self.models), "")

    @property
    def requests(self) -> int:
        """Requests placed here that have not ended, by the router's other workers too."""
        return sum(unit.in_flight.requests + unit.sibling_requests for unit in self.units)

    def cache_counts(self) -> CacheCounts | None:
        """Return what its engine counted of all ranks' prefix caches; None where it does not tell."""
        return CacheCounts.together([unit.cache_counts for unit in self.units])

    def state(self, now_s: float) -> ReplicaState:
        """Tell whether it may take a request at `now_s`.

        An ejected one is ready again when its time is over: the next request is its probe (see `Fleet.probed`).
        """
        if self.draining:
            return ReplicaState.DRAINING
        if self.down_reason is not None:
            return ReplicaState.DOWN
        if self.ejected_until_s is not None and now_s < self.ejected_until_s:
            return ReplicaState.EJECTED
        if self.held_until_s is not None and now_s < self.held_until_s:
            return ReplicaState.WARMING
        return ReplicaState.READY
