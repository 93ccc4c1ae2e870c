"""Names of what lies in Redis.

    {wr}:units                      sorted set: every unit, scored by Redis' own time in seconds at its last renewal
    {wr:k}:stream                   stream of lane k; each entry has a field `d` = wire.encode(message), and where it
                                    came late `l`: the ms (decimal) from when it was written until it was in the stream
    {wr:k}:load                     stream of what routers have in flight at lane k's units: router_load.encode(...)
    {wr:k}:epoch:UNIT               string `EPOCH SEQUENCE`, decimal: who may write, and the last batch (the fence)
    {wr:k}:lease:UNIT               string with PX: registration.encode(...)
    {wr:k}:snapshot:UNIT            string: N, the name of the newest whole snapshot (the pointer)
    {wr:k}:snapshot:UNIT:N          list of snapshot chunks, in order
    {wr:drain}:REPLICA              string with PX: drains.encode(...), an operator's order to take no new requests
    {wr:doubt}:UNIT                 list of doubts.encode(...), from routers to the unit's agent
    {wr:text}:SHA256                list of a tokenizer file's chunks, in order: what all agents of a model share
    {wr:text}:SHA256:NAME           the same while an agent writes it

A unit's keys and its lane's stream share a hash tag, so one script reaches all of them, in Redis Cluster too. Nothing
is found by SCAN. Which rights agents and routers need is in `router.kv.acl`.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

DEFAULT_NAMESPACE = "wr"
DEFAULT_LANES = 16
FIELD, LATE_FIELD = b"d", b"l"
"""The fields of a stream entry. Readers skip others."""


def lane_of(unit: str, lanes: int = DEFAULT_LANES) -> int:
    """Return the lane of a unit, 0 <= lane < lanes. Every process computes the same."""
    return xxhash.xxh64_intdigest(unit.encode()) % lanes


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one namespace.

    Attributes:
        namespace: Tells apart fleets that share one Redis; without braces.
        lanes: Streams that all units are hashed to. Agents and routers must agree.
    """

    namespace: str = DEFAULT_NAMESPACE
    lanes: int = DEFAULT_LANES

    def __post_init__(self) -> None:
        if not self.namespace or set("{}") & set(self.namespace):
            raise ValueError("a namespace has at least one character and no braces")
        if not 1 <= self.lanes <= 4096:
            raise ValueError("lanes are 1 to 4096")

    @property
    def registry(self) -> str:
        """Sorted set of all units, scored by Redis' time in seconds."""
        return f"{{{self.namespace}}}:units"

    def stream(self, lane: int) -> str:
        """Stream of one lane."""
        return f"{{{self.namespace}:{lane}}}:stream"

    def load_stream(self, lane: int) -> str:
        """Stream of what routers have in flight at one lane's units."""
        return f"{{{self.namespace}:{lane}}}:load"

    def stream_of(self, unit: str) -> str:
        """Stream of a unit's lane."""
        return self.stream(lane_of(unit, self.lanes))

    def epoch(self, unit: str) -> str:
        """The fence: `EPOCH SEQUENCE`, which epoch of the unit may write and what it wrote last."""
        return self._of(unit, "epoch")

    def lease(self, unit: str) -> str:
        """The unit's signed registration, with a time to live."""
        return self._of(unit, "lease")

    def snapshot_pointer(self, unit: str) -> str:
        """Holds the name N of the unit's newest whole snapshot."""
        return self._of(unit, "snapshot")

    def snapshot(self, unit: str, n: int | str) -> str:
        """List of the chunks of the unit's snapshot N."""
        return f"{self.snapshot_pointer(unit)}:{n}"

    def drain(self, replica_id: str) -> str:
        """The operator's order that a replica takes no new requests, with a time to live."""
        return f"{{{self.namespace}:drain}}:{replica_id}"

    def doubts(self, unit: str) -> str:
        """What routers tell a unit's agent of blocks that its engine did not find."""
        return f"{{{self.namespace}:doubt}}:{unit}"

    @property
    def rates(self) -> str:
        """Hash of what is asked of each router, by its name."""
        return f"{{{self.namespace}:rates}}:asked"

    def text_file(self, digest: str) -> str:
        """List of the chunks of a tokenizer file, by the SHA-256 of its content."""
        return f"{{{self.namespace}:text}}:{digest}"

    def text_file_draft(self, digest: str, name: str) -> str:
        """The same file while one agent writes it."""
        return f"{self.text_file(digest)}:{name}"

    def _of(self, unit: str, what: str) -> str:
        return f"{{{self.namespace}:{lane_of(unit, self.lanes)}}}:{what}:{unit}"
