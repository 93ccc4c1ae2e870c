"""What routers say of blocks that the engine did not find: belief that nothing else would end."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.agent import redis_link
from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.doubts import DoubtReader
from replica.agent.last_announced import MAX_ANNOUNCED
from replica.agent.mapping import own_scheme
from replica.agent.metrics import AgentMetrics
from replica.agent.proof import SchemeProof
from replica.agent.unit import UnitState
from router.feeds.redis_link import RedisLink
from router.kv import doubts
from router.kv.doubts import Doubt
from router.kv.events import GroupKind
from router.kv.hashes import chain
from router.kv.keys import Keys
from router.kv.wire import Change

TOKENS = list(range(48))
OWN = chain(TOKENS, own_scheme(16))


class Heard:
    """A unit that heard of blocks 7, 8, 9, twice: a drift of counts as re-announced blocks bring it."""

    def __init__(self, events: Any, maps: bool) -> None:
        self.unit = UnitState("r0/0", VllmAdapter(), SchemeProof("none", 16, None), None, maps=maps)
        self.names = dict(zip((7, 8, 9), OWN if maps else (7, 8, 9), strict=True))
        self.events = events
        self.sequence = 0
        for at_s in (10.0, 11.0):
            self.say([events.stored([7, 8, 9], tokens=TOKENS)], at_s)

    def say(self, events: list[Any], at_s: float) -> list[Change]:
        payload = msgspec.msgpack.encode([1.0, events, 0])
        self.sequence += 1
        return self.unit.accept(self.sequence - 1, payload, at_s)

    def live(self) -> set[int]:
        held = {block for _, _, _, hashes in self.unit.layers() for block in hashes}
        return {block for block, name in self.names.items() if name in held}


@pytest.fixture(params=[False, True], ids=["exact", "mapped"])
def heard(request: Any, events: Any) -> Heard:
    """Under the engine's own names and under ours."""
    return Heard(events, request.param)


def test_a_block_that_is_gone_though_counted_is_given_up(heard: Heard) -> None:
    """Announced twice and removed once: the engine does not hold 9, and only a router sees it."""
    assert heard.say([heard.events.removed([9])], 20.0) == []
    changes = heard.unit.disbelieve([heard.names[9]], since_s=30.0)
    assert changes == [Change("removed", 0, 0, GroupKind.FULL, [heard.names[9]])]
    assert heard.live() == {7, 8}


def test_a_block_that_was_computed_again_is_there_once(heard: Heard) -> None:
    """The request that did not find it stored it: it stays, and its next removal counts."""
    heard.say([heard.events.removed([9])], 20.0)
    heard.say([heard.events.stored([9], parent=8, tokens=TOKENS[32:])], 31.0)
    assert heard.unit.disbelieve([heard.names[9]], since_s=30.0) == []
    assert heard.live() == {7, 8, 9}
    assert heard.say([heard.events.removed([9])], 40.0) != []
    assert heard.live() == {7, 8}


def test_a_block_that_was_evicted_and_computed_again_stays(heard: Heard) -> None:
    """It was gone when the request came, and the request stored it anew: the engine holds it."""
    heard.say([heard.events.removed([9]), heard.events.removed([9])], 31.0)
    assert heard.live() == {7, 8}
    heard.say([heard.events.stored([9], parent=8, tokens=TOKENS[32:])], 32.0)
    assert heard.unit.disbelieve([heard.names[9]], since_s=30.0) == []
    assert heard.live() == {7, 8, 9}


def test_what_can_not_be_remembered_is_believed(events: Any) -> None:
    """So many blocks were announced since that nobody knows when this one was: it stays."""
    heard = Heard(events, maps=False)
    heard.say([events.stored(list(range(100, 100 + MAX_ANNOUNCED)))], 40.0)
    assert heard.unit.disbelieve([9], since_s=10.5) == []
    assert heard.unit.disbelieve([9], since_s=30.0) != []


def test_what_is_not_held_is_no_matter(heard: Heard) -> None:
    """Unknown blocks, in any number."""
    assert heard.unit.disbelieve([1, 2, 3], since_s=0.0) == []
    assert heard.live() == {7, 8, 9}


async def test_a_routers_word_reaches_the_agent(redis_url: str, events: Any, mirror: Any) -> None:
    """Through a real Valkey: of the epoch that is published now; of an older one it is void, and it is read once."""
    one = Heard(events, maps=False)
    told: list[Change] = []

    def publish(changes: Sequence[Change], _: float) -> None:
        told.extend(changes)

    client, link = redis_link.connect(redis_url), RedisLink(redis_url, Keys())
    await link.open()
    reader = DoubtReader(client, Keys(), one.unit, lambda: 5, publish, AgentMetrics())
    await reader.look()
    for epoch, block in ((4, 7), (5, 8)):
        await link.write_doubt("r0/0", doubts.encode(Doubt(epoch, 0.0, (block,))))
    await link.write_doubt("r0/0", b"rubbish")
    assert 0 < mirror.client.pttl(Keys().doubts("r0/0")) <= doubts.KEEP_S * 1000
    await reader.look()
    assert told == [Change("removed", 0, 0, GroupKind.FULL, [8])]
    await reader.look()
    assert len(told) == 1
    for _ in range(doubts.MAX_KEPT + 10):
        await link.write_doubt("r0/0", b"x")
    assert mirror.client.llen(Keys().doubts("r0/0")) == doubts.MAX_KEPT
    await link.close()
    await client.close()


async def test_a_word_that_is_read_late_is_no_younger(redis_url: str, events: Any, monkeypatch: Any) -> None:
    """Redis kept it from the agent for a while. What was announced meanwhile is there all the same."""
    one = Heard(events, maps=False)
    told: list[Change] = []
    now_s = [100.0]
    monkeypatch.setattr("replica.agent.doubts.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    client, link = redis_link.connect(redis_url), RedisLink(redis_url, Keys())
    await link.open()
    reader = DoubtReader(client, Keys(), one.unit, lambda: 5, lambda changes, _: told.extend(changes), AgentMetrics())
    await reader.look()
    one.say([events.removed([9]), events.removed([9])], 101.0)
    one.say([events.stored([9], parent=8, tokens=TOKENS[32:])], 102.0)
    await link.write_doubt("r0/0", doubts.encode(Doubt(5, 1.5, (7, 9))))
    now_s[0] = 140.0
    await reader.look()
    assert told == [Change("removed", 0, 0, GroupKind.FULL, [7])]
    await link.close()
    await client.close()


@given(st.binary(max_size=100))
def test_no_bytes_are_an_error(data: bytes) -> None:
    """Whoever can write to Redis can write anything: it is a doubt or nothing."""
    read = doubts.decode(data)
    assert read is None or doubts.decode(doubts.encode(read)) == read


def test_a_doubt_is_read_as_it_was_written() -> None:
    """All its fields."""
    doubt = Doubt(1_764_500_000_000_000, 1.25, (0, 2**64 - 1))
    assert doubts.decode(doubts.encode(doubt)) == doubt
