"""Slots of keys, and the map of who has them."""

from __future__ import annotations

from collections import Counter

import pytest
from redis.crc import key_slot

from router.kv.keys import Keys
from router.kv.redis_slots import SLOTS, SlotMap, SlotsError, slot_of


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),
        ("foo", 12182),
        ("{user1000}.following", 3443),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
    ],
)
def test_slots_are_those_of_the_specification(key: str, slot: int) -> None:
    """The first is the specification's own example; the others are held against another implementation too."""
    assert slot_of(key) == slot == key_slot(key.encode())


@pytest.mark.parametrize("text", ["", "{", "}{", "a{b}c{d}", "{}x", "ä{ü}", "{wr:3}:stream"])
def test_odd_keys_have_the_slot_that_others_compute(text: str) -> None:
    """Hash tags at the edges of their rule."""
    assert slot_of(text) == key_slot(text.encode())


def test_the_default_lanes_reach_every_node_of_small_clusters() -> None:
    """16 lanes over 3 or 4 equal parts of the slots: each has some, and none more than half."""
    slots = [slot_of(Keys().stream(lane)) for lane in range(16)]
    for nodes in (3, 4):
        share = Counter(slot * nodes // SLOTS for slot in slots)
        assert len(share) == nodes
        assert max(share.values()) <= 8


def test_an_answer_replaces_the_map() -> None:
    """Ranges with primary and replicas; a primary without a host is the node that was asked."""
    slots = SlotMap()
    slots.learn(
        [[0, 99, [b"10.0.0.1", 7000, b"id"], [b"10.0.0.2", 7001, b"id2"]], [100, 16383, [None, 7002]]], ("h", 1)
    )
    assert (slots.primary(99), slots.primary(100)) == (("10.0.0.1", 7000), ("h", 7002))
    slots.assign(99, ("x", 5))
    assert slots.addresses == {("x", 5), ("10.0.0.1", 7000), ("h", 7002)}


@pytest.mark.parametrize("answer", [[], None, [[1]], [[0, 1, []]], [["a", "b", [b"h", 1]]], b"x"])
def test_an_answer_of_another_form_changes_nothing(answer: object) -> None:
    """Whatever answers in a Cluster's place."""
    slots = SlotMap()
    slots.assign(1, ("h", 1))
    with pytest.raises(SlotsError):
        slots.learn(answer, ("h", 1))
    assert slots.primary(1) == ("h", 1)
