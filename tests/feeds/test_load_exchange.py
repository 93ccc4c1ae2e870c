"""Routers tell each other what is in flight, through a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis as sync_redis

from router.feeds.load_exchange import AGAIN_S, LoadExchange
from router.feeds.redis_link import RedisLink
from router.fleet.facts import ReplicaFacts, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.ledger import Reservation
from router.kv.keys import Keys, lane_of
from router.kv.router_load import MAX_ENTRIES, Row, encode

REPLICAS = 40  # over all lanes


class Router:
    """A router's fleet and its side of the exchange, on a clock that the test moves."""

    def __init__(self, clock: list[float], group: str | None = None, number: int = 0) -> None:
        self.clock = clock
        self.fleet = Fleet(prefill_tokens_per_s=1_000.0)
        for replica in range(REPLICAS):
            unit = UnitFacts(f"r{replica}/0", 0, None, Trust.APPROXIMATE)
            facts = ReplicaFacts(f"r{replica}", f"http://r{replica}:8000", "redis", (), (unit,))
            self.fleet.announce(facts, 0.0)
        self.exchange = LoadExchange(self.fleet, 16, lambda: clock[0], None, group, number)

    def place(self, replica: int, tokens: int) -> Reservation:
        """A request begins."""
        return self.fleet.units[f"r{replica}/0"].in_flight.reserve(tokens, self.clock[0])

    def peers_at(self, replica: int) -> tuple[int, float]:
        """What others have there, as this router knows."""
        unit = self.fleet.units[f"r{replica}/0"]
        return unit.peer_requests, unit.peer_tokens


@pytest.fixture
async def link(redis_url: str) -> Any:
    made = RedisLink(redis_url, Keys())
    await made.open()
    yield made
    await made.close()


async def rounds(link: RedisLink, *routers: Router, count: int = 3, seconds: float = 0.05) -> None:
    """Each exchanges so often."""
    for _ in range(count):
        routers[0].clock[0] += seconds
        for router in routers:
            await router.exchange.exchange(link)


async def test_what_one_places_the_others_know_and_its_end_too(link: RedisLink) -> None:
    """At any replica, whichever lane it is of; tokens melt, told of or not."""
    clock = [0.0]
    one, two = Router(clock), Router(clock)
    await rounds(link, one, two)
    places = [one.place(replica, 12_800) for replica in range(REPLICAS)]
    two.place(3, 6_400)
    await rounds(link, one, two, seconds=0.0)
    assert [two.peers_at(replica) for replica in range(REPLICAS)] == [(1, 12_800.0)] * REPLICAS
    assert one.peers_at(3) == (1, 6_400.0)
    assert one.peers_at(4) == (0, 0.0)
    await rounds(link, one, two, count=1, seconds=6.4)
    assert two.peers_at(3) == (1, 6_400.0)
    for place in places:
        place.load.first_token(place, one.clock[0])
    await rounds(link, one, two)
    assert two.peers_at(3) == (1, 0.0)
    for place in places:
        place.load.release(place, one.clock[0])
    await rounds(link, one, two)
    assert [two.peers_at(replica) for replica in range(REPLICAS)] == [(0, 0.0)] * REPLICAS


async def test_a_dead_router_s_requests_end_after_three_seconds(link: RedisLink) -> None:
    """While it lived they were told again and again, though nothing changed."""
    clock = [0.0]
    one, two = Router(clock), Router(clock)
    await rounds(link, one, two)
    place = one.place(0, 0)
    for _ in range(10):
        await rounds(link, one, two, count=1, seconds=AGAIN_S)
    assert two.peers_at(0) == (1, 0.0)
    await rounds(link, two, count=2, seconds=1.4)
    assert two.peers_at(0) == (1, 0.0)
    await rounds(link, two, count=1, seconds=0.3)
    assert (two.peers_at(0), two.exchange.peers.routers) == ((0, 0.0), 0)
    assert place.load.requests == 1


async def test_workers_of_one_router_are_no_others_to_each_other(link: RedisLink) -> None:
    """They share by memory: counted here as well, each request would be there twice."""
    clock = [0.0]
    one, two, other = Router(clock, "group", 0), Router(clock, "group", 1), Router(clock, "another")
    await rounds(link, one, two, other)
    one.place(0, 640)
    two.place(0, 640)
    await rounds(link, one, two, other, seconds=0.0)
    assert (one.peers_at(0), two.peers_at(0)) == ((0, 0.0), (0, 0.0))
    assert other.peers_at(0) == (2, 1280.0)


async def test_a_router_alone_writes_a_sign_of_life_and_no_more(link: RedisLink, redis_url: str) -> None:
    """Load that nobody reads costs Redis nothing."""
    router = Router([0.0])
    for number in range(40):
        router.place(number % REPLICAS, 64)
        await rounds(link, router, count=1)
    with sync_redis.Redis.from_url(redis_url) as client:
        written = sum(client.xlen(Keys().load_stream(lane)) for lane in range(16))
        assert 1 <= written <= 4
        assert all(0 < client.ttl(key) <= 60 for key in client.keys("*load*"))


async def test_streams_stay_short(link: RedisLink, redis_url: str) -> None:
    """However much is told."""
    clock = [0.0]
    one, two = Router(clock), Router(clock)
    await rounds(link, one, two)
    for number in range(1_500):
        one.place(0, 64 + number)
        await one.exchange.exchange(link)
    with sync_redis.Redis.from_url(redis_url) as client:
        assert max(client.xlen(Keys().load_stream(lane)) for lane in range(16)) <= MAX_ENTRIES + 200


async def test_what_others_wrote_there_does_no_harm(link: RedisLink, redis_url: str) -> None:
    """Entries that are none are left out; a key that is no stream takes the figures of others away, and no more."""
    clock = [0.0]
    one, two = Router(clock), Router(clock)
    await rounds(link, one, two)
    with sync_redis.Redis.from_url(redis_url) as client:
        for data in (b"", b"\xff", encode("stranger", [Row("r0/0", 3, 5.0)]), bytes(300_000)):
            client.xadd(Keys().load_stream(5), {"d": data})
        client.xadd(Keys().load_stream(5), {"x": b"1"})
        one.place(1, 640)
        await rounds(link, one, two, seconds=0.0)
        assert two.peers_at(1) == (1, 640.0)
        assert two.peers_at(0) == (3, 5.0)
        client.set(Keys().load_stream(7), "a text")
        await one.exchange.exchange(link)
        client.delete(Keys().load_stream(7))
        one.place(1, 640)
        await rounds(link, one, two)
        assert two.peers_at(1)[0] == 2


async def test_a_lane_is_written_at_most_each_fifty_milliseconds(link: RedisLink, redis_url: str) -> None:
    """However much changes; the last change is told all the same."""
    clock = [0.0]
    one, two = Router(clock), Router(clock)
    await rounds(link, one, two)
    lane = lane_of("r3/0")
    with sync_redis.Redis.from_url(redis_url) as client:
        before = client.xlen(Keys().load_stream(lane))
        for _ in range(100):
            clock[0] += 0.003
            one.place(3, 0)
            await one.exchange.tell(link)
        assert client.xlen(Keys().load_stream(lane)) - before <= 7
    await rounds(link, one, two)
    assert two.peers_at(3) == (100, 0.0)


async def test_rights_from_before_are_no_failure(redis_url: str) -> None:
    """A router whose user may not write there goes on with its own figures."""
    with sync_redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", "old", "reset", "on", ">secret", "~*", "+@all", "-xadd")
        link = RedisLink(redis_url.replace("redis://", "redis://old:secret@"), Keys())
        try:
            await link.open()
            router = Router([0.0])
            await router.exchange.exchange(link)
            assert router.exchange.peers.routers == 0
        finally:
            await link.close()
            client.execute_command("ACL", "DELUSER", "old")


async def test_it_runs_until_cancelled(link: RedisLink, eventually: Callable[..., Any]) -> None:
    """Two routers on real clocks, and what the first one places reaches the second."""
    loop = asyncio.get_running_loop()
    routers = [Router([0.0]), Router([0.0])]
    for router in routers:
        router.exchange._clock = loop.time
    running = [asyncio.create_task(router.exchange.run(link)) for router in routers]
    await eventually(lambda: all(router.exchange.peers.routers == 1 for router in routers))
    routers[0].place(2, 0)
    await eventually(lambda: routers[1].peers_at(2) == (1, 0.0))
    for task in running:
        task.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*running, return_exceptions=True)
    )
