"""How lanes lie on the nodes of a Redis Cluster. Pure.

A lane is one slot, given by its name's CRC16, and names that differ in a digit have slots in a pattern: 16 lanes leave
nodes of a larger Cluster without any. More lanes reach more nodes; agents and routers must have equally many.
"""

from __future__ import annotations

import dataclasses

from router.kv.keys import Keys
from router.kv.redis_slots import SlotMap, slot_of

LANES_ADVISED = (16, 32, 64, 128, 256, 512, 1_024)


@dataclasses.dataclass(frozen=True, slots=True)
class LaneSpread:
    """Where the lanes of a fleet are.

    Attributes:
        lanes: How many there are.
        reached: Nodes that have any of them.
        nodes: Nodes that have slots.
        advised: The fewest of `LANES_ADVISED` that reach every node, or else as many as any of them do; `lanes` where
            these do already.
    """

    lanes: int
    reached: int
    nodes: int
    advised: int


def lane_spread(keys: Keys, slots: SlotMap) -> LaneSpread:
    """Return how a namespace's lanes lie on a Cluster's nodes."""
    reached, nodes = _reached(keys, slots), len(slots.addresses)
    found = {lanes: _reached(dataclasses.replace(keys, lanes=lanes), slots) for lanes in LANES_ADVISED}
    most = max(*found.values(), reached)
    advised = keys.lanes if reached == most else next(lanes for lanes, count in found.items() if count == most)
    return LaneSpread(keys.lanes, reached, nodes, advised)


def _reached(keys: Keys, slots: SlotMap) -> int:
    holders = {slots.primary(slot_of(keys.stream(lane))) for lane in range(keys.lanes)}
    return len(holders - {None})
