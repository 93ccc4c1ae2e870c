"""The fleet: the one owner of who is in it and in what state.

Feeds announce and withdraw, health probes mark up and down, the data plane reports failures, placement reads. All
calls are synchronous and none waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from router.fleet.facts import EngineLoad, ReplicaFacts, UnitFacts
from router.fleet.ledger import UnitLoad
from router.fleet.replica import Replica, ReplicaState, Unit
from router.kv.extra_keys import Lora
from router.kv.schemes import Scheme

SETTLED_S = 10.0
"""A router takes what joins so soon after its first replica for a fleet that was there before."""


class Fleet:
    """Replicas and units by name.

    Args:
        prefill_tokens_per_s: Speed assumed for a new unit.
        eject_after: Failures in a row that eject a replica.
        eject_s: Seconds it is then left alone; doubled by each probe request that fails.
        eject_max_s: But never more than this, or `eject_s` if that is more.
        max_in_flight: Requests that a replica may have at once; 0: any number.
        hold_new_s: A replica that joins takes no requests until `let_in`, but for this long at most.
        on_unit_withdrawn: Called with a unit that left, before its slot is free for another.
        on_replica_returned: Called with a replica that passes a probe after it was down: it may have restarted.
        on_cache_voided: Called with a unit whose cache is not the one that it reported.
    """

    def __init__(
        self,
        *,
        prefill_tokens_per_s: float = 8_000.0,
        eject_after: int = 3,
        eject_s: float = 10.0,
        eject_max_s: float = 60.0,
        max_in_flight: int = 0,
        hold_new_s: float = 0.0,
        on_unit_withdrawn: Callable[[Unit], None] | None = None,
        on_replica_returned: Callable[[Replica], None] | None = None,
        on_cache_voided: Callable[[Unit], None] | None = None,
    ) -> None:
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._eject_after = eject_after
        self._eject_s = eject_s
        self._eject_max_s = max(eject_s, eject_max_s)
        self.max_in_flight = max_in_flight
        self._hold_new_s = hold_new_s
        self._on_unit_withdrawn = on_unit_withdrawn
        self._on_replica_returned = on_replica_returned
        self._on_cache_voided = on_cache_voided
        self._replicas: dict[str, Replica] = {}
        self._units: dict[str, Unit] = {}
        self._free_slots: list[int] = []
        self._next_slot = 0
        self._next_serial = 0
        self._began_s = float("inf")
        self.version = 0
        """Grows with every change of members, the models they serve, their schemes or their trust."""

    def configure(
        self,
        *,
        prefill_tokens_per_s: float,
        eject_after: int,
        eject_s: float,
        eject_max_s: float,
        max_in_flight: int,
        hold_new_s: float = 0.0,
    ) -> None:
        """Take over other settings: for units that are new, and for failures, from now on."""
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._eject_after = eject_after
        self._eject_s = eject_s
        self._eject_max_s = max(eject_s, eject_max_s)
        self.max_in_flight = max_in_flight
        self._hold_new_s = hold_new_s

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """All replicas by id, in order of arrival."""
        return MappingProxyType(self._replicas)

    @property
    def units(self) -> Mapping[str, Unit]:
        """All units by id, in order of arrival."""
        return MappingProxyType(self._units)

    def unit(self, unit_id: str) -> Unit | None:
        """Return a unit by its id."""
        return self._units.get(unit_id)

    def announce(self, facts: ReplicaFacts, now_s: float) -> Replica:
        """Add a replica, or bring what is known of it up to date.

        Under another url it is another process: its units begin anew, with nothing in flight and no blocks.
        """
        self._began_s = min(self._began_s, now_s)
        replica = self._replicas.get(facts.replica_id)
        if replica is not None and replica.url != facts.url:
            self.withdraw(facts.replica_id)
            replica = None
        if replica is None:
            replica = Replica(facts.replica_id, facts.url, facts.source)
            self._replicas[facts.replica_id] = replica
            if self._hold_new_s and now_s - self._began_s > SETTLED_S:
                replica.held_until_s = now_s + self._hold_new_s
            self.version += 1
        replica.source = facts.source
        replica.engine = facts.engine
        replica.draining = facts.draining
        models = {model.name: model for model in facts.models}
        if models != replica.models:
            replica.models = models
            self.version += 1
        wanted = {unit.unit_id for unit in facts.units}
        for unit in [unit for unit in replica.units if unit.unit_id not in wanted]:
            self._withdraw_unit(unit)
        for unit_facts in facts.units:
            self._announce_unit(replica, unit_facts, now_s)
        return replica

    def let_in(self, replica: Replica) -> None:
        """A replica that joined is as warm as it gets before traffic."""
        replica.held_until_s = None

    def withdraw(self, replica_id: str) -> None:
        """Forget a replica and its units' blocks. Requests that run there end on their own."""
        replica = self._replicas.pop(replica_id, None)
        if replica is None:
            return
        self.version += 1
        for unit in list(replica.units):
            self._withdraw_unit(unit)

    def report_load(self, unit_id: str, load: EngineLoad | None) -> None:
        """Keep an engine's own figures; None when they could not be had.

        What it counts beyond the requests of all known routers came by other ways, and runs there until it says
        otherwise: the routers' own count changes with each request, the engine's once in a while.
        """
        unit = self._units.get(unit_id)
        if unit is None:
            return
        unit.load = load
        unit.placed_at_report_tokens = unit.in_flight.placed_tokens
        known = unit.in_flight.requests + unit.sibling_requests + unit.peer_requests
        unit.foreign_requests = 0 if load is None else max(0, load.running + load.waiting - known)
        if load is not None and load.query_tokens is not None and load.hit_tokens is not None:
            unit.cache_counts.told(load.query_tokens, load.hit_tokens, load.at_s)

    def mark_draining(self, replica_id: str, draining: bool = True) -> None:
        """Take a replica out of the choice, or put it back, without touching what runs there."""
        if replica_id in self._replicas:
            self._replicas[replica_id].draining = draining

    def mark_down(self, replica_id: str, reason: str) -> None:
        """A probe failed: no requests until `mark_up`."""
        if replica_id in self._replicas:
            self._replicas[replica_id].down_reason = reason

    def mark_up(self, replica_id: str) -> None:
        """A probe succeeded: it is reached again. Why it failed requests otherwise, a probe does not show."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            if replica.down_reason is not None and self._on_replica_returned is not None:
                self._on_replica_returned(replica)
            replica.down_reason = None
            if replica.refused_connections:
                self.succeeded(replica_id)

    def cache_voided(self, unit: Unit) -> None:
        """What a unit reported, and what was sent to it, is of a cache that is gone."""
        if self._on_cache_voided is not None:
            self._on_cache_voided(unit)

    def failed(self, replica_id: str, now_s: float, *, refused_connection: bool = False) -> bool:
        """Count a failed request (not connected, broken off, timed out, 502 to 504); eject after several in a row.

        Args:
            refused_connection: It could not be connected to.

        Returns:
            Whether this failure ejected it.
        """
        replica = self._replicas.get(replica_id)
        if replica is None:
            return False
        replica.failures_in_a_row += 1
        replica.refused_connections = refused_connection
        if replica.failures_in_a_row < self._eject_after:
            return False
        newly = replica.ejected_until_s is None
        if newly:
            replica.ejected_for_s = self._eject_s
        elif replica.probe_until_s is not None:
            replica.ejected_for_s = min(self._eject_max_s, 2 * replica.ejected_for_s)
        # Else one of those that were on their way when it was ejected.
        replica.probe_until_s = None
        replica.ejected_until_s = now_s + replica.ejected_for_s
        replica.ejections += newly
        return newly

    def succeeded(self, replica_id: str) -> None:
        """Count a good answer: the replica is fully back."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.failures_in_a_row = 0
            replica.ejected_until_s = replica.probe_until_s = None
            replica.refused_connections = False

    def probed(self, replica: Replica, now_s: float) -> bool:
        """A request was placed: tell whether it is the probe of a replica whose ejection ran out.

        It is the only one until it has failed or succeeded: a replica that accepts and never answers holds up one
        request, and not one every few seconds. A long answer is no sign either way, so after a time there is another.
        """
        if replica.ejected_until_s is None or now_s < replica.ejected_until_s:
            return False
        replica.probe_until_s = replica.ejected_until_s = now_s + self._eject_max_s
        return True

    def probe_ended(self, replica: Replica, now_s: float) -> None:
        """A probe ended. Where that showed nothing (its client left), the next request is one."""
        if replica.probe_until_s is not None:
            replica.probe_until_s = None
            replica.ejected_until_s = now_s

    def model_names(self) -> list[str]:
        """Every name that some replica serves, sorted."""
        return sorted({name for replica in self._replicas.values() for name in replica.models})

    def base_model(self, name: str) -> str | None:
        """Return the base model of an adapter, or the name itself when it is one; None when nobody serves it.

        Safe to call from other threads: prompts are read there.
        """
        for replica in list(self._replicas.values()):
            served = replica.models.get(name)
            if served is not None:
                return served.parent or served.name
        return None

    def sole_model(self) -> str | None:
        """Return the base model that a request without a model is for; None where there are several, or none is known.

        A model may be served under several names. Safe to call from other threads, as `base_model`.
        """
        bases = [
            served
            for replica in list(self._replicas.values())
            for served in replica.models.values()
            if served.parent is None
        ]
        return bases[0].name if len({served.root for served in bases}) == 1 else None

    def max_model_len(self, name: str) -> int | None:
        """Return a model's longest prompt and answer together, in tokens; None where its replicas don't agree.

        Engines give none for an adapter: it has its base model's. Safe to call from other threads, as `base_model`.
        """
        lengths = set()
        for replica in list(self._replicas.values()):
            served = replica.models.get(name)
            if served is not None and served.max_model_len is None and served.parent is not None:
                served = replica.models.get(served.parent)
            if served is not None:
                lengths.add(served.max_model_len)
        return lengths.pop() if len(lengths) == 1 else None

    def namings(self, model: str | None) -> list[tuple[Scheme, Lora | None]]:
        """Return how the units that serve a model name its blocks, each way once.

        Safe to call from other threads: prompts are read and hashed there.
        """
        found: dict[tuple[Scheme, Lora | None], None] = {}
        for replica in list(self._replicas.values()):
            served = replica.models.get(model) if model is not None else None
            if served is None and model is not None and replica.models:
                continue
            lora = Lora(served.name, served.root) if served is not None and served.parent is not None else None
            for unit in list(replica.units):
                if unit.scheme is not None:
                    found[(unit.scheme, lora)] = None
        return list(found)

    def ready_count(self, now_s: float) -> int:
        """How many replicas may take a request."""
        may = (ReplicaState.READY, ReplicaState.WARMING)
        return sum(replica.state(now_s) in may for replica in self._replicas.values())

    def _announce_unit(self, replica: Replica, facts: UnitFacts, now_s: float) -> None:
        unit = self._units.get(facts.unit_id)
        if unit is not None and unit.replica is not replica:
            self._withdraw_unit(unit)
            unit = None
        if unit is None:
            slot = self._free_slots.pop() if self._free_slots else self._next_slot
            self._next_slot = max(self._next_slot, slot + 1)
            load = UnitLoad(self._prefill_tokens_per_s)
            unit = Unit(facts.unit_id, facts.rank, slot, self._next_serial, replica, load)
            if now_s - self._began_s > SETTLED_S:
                unit.new_since_s = now_s
            self._next_serial += 1
            self._units[facts.unit_id] = unit
            replica.units.append(unit)
            self.version += 1
        if unit.scheme != facts.scheme or unit.trust is not facts.trust:
            unit.scheme = facts.scheme
            unit.trust = facts.trust
            self.version += 1
        unit.num_blocks = facts.num_blocks
        unit.reason = facts.reason
        unit.whole = facts.whole
        unit.strides = facts.strides
        unit.tails = facts.tails

    def _withdraw_unit(self, unit: Unit) -> None:
        self._units.pop(unit.unit_id, None)
        unit.replica.units.remove(unit)
        if self._on_unit_withdrawn is not None:
            self._on_unit_withdrawn(unit)
        self._free_slots.append(unit.slot)
        self.version += 1
