"""How many nodes of a Cluster have lanes, and how many lanes reach all: by the slots' own arithmetic."""

from __future__ import annotations

import pytest

from router.kv.keys import Keys
from router.kv.lane_spread import LANES_ADVISED, LaneSpread, lane_spread
from router.kv.redis_slots import SLOTS, SlotMap


def cluster(nodes: int) -> SlotMap:
    """Slots in equal ranges, as `redis-cli --cluster create` hands them out."""
    bounds = [round(number * SLOTS / nodes) for number in range(nodes + 1)]
    slots = SlotMap()
    ranges = [[bounds[n], bounds[n + 1] - 1, [b"10.0.0.%d" % n, 6379, b"id"]] for n in range(nodes)]
    slots.learn(ranges, ("10.0.0.0", 6379))
    return slots


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 8])
def test_sixteen_lanes_reach_small_clusters(nodes: int) -> None:
    """All of up to five nodes, and of eight: nothing is advised."""
    assert lane_spread(Keys(), cluster(nodes)) == LaneSpread(16, nodes, nodes, 16)


def test_sixteen_lanes_leave_two_of_six_nodes_without_any() -> None:
    """CRC16 of wr:0 to wr:15 lies so; 32 lanes reach all six."""
    assert lane_spread(Keys(), cluster(6)) == LaneSpread(16, 4, 6, 32)


@pytest.mark.parametrize(("lanes", "most"), [(32, 10), (64, 16)])
def test_more_lanes_reach_larger_clusters(lanes: int, most: int) -> None:
    """As docs/redis.md says."""
    for nodes in range(1, most + 1):
        assert lane_spread(Keys(lanes=lanes), cluster(nodes)) == LaneSpread(lanes, nodes, nodes, lanes)


@pytest.mark.parametrize("nodes", [5, 9, 24, 100])
def test_what_is_advised_reaches_as_many_as_any(nodes: int) -> None:
    """And nothing more is advised to who follows it."""
    slots = cluster(nodes)
    spread = lane_spread(Keys("fleet"), slots)
    followed = lane_spread(Keys("fleet", lanes=spread.advised), slots)
    assert followed.advised == spread.advised
    assert followed.reached == max(lane_spread(Keys("fleet", lanes=n), slots).reached for n in LANES_ADVISED)


def test_slots_that_nobody_serves_are_no_node() -> None:
    """A Cluster that lost a part."""
    slots = SlotMap()
    slots.learn([[0, 99, [b"10.0.0.1", 6379, b"id"]]], ("10.0.0.1", 6379))
    assert lane_spread(Keys(), slots).reached <= 1
