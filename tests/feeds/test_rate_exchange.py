"""Routers divide tenants' limits through a real Redis, off every request's path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis as sync_redis

from router.errors import RateLimitedError
from router.feeds import rate_exchange
from router.feeds.rate_exchange import RateExchange
from router.feeds.redis_link import RedisLink
from router.kv.keys import Keys
from router.request.auth.limits import TenantLimits
from router.request.auth.tenants import Tenant

ACME = Tenant("acme", requests_per_minute=600)
KEY = ("acme", "requests")


class Router:
    """A router's limits and its side of the exchange, on a clock that the test moves."""

    def __init__(self, clock: list[float], tenant: Tenant = ACME) -> None:
        self.clock = clock
        self.tenant = tenant
        self.limits = TenantLimits()
        self.limits.follow([tenant], clock[0])
        self.exchange = RateExchange(self.limits, lambda: clock[0])

    def ask(self, times: int) -> int:
        """So many requests come at once; how many are let in."""
        good = 0
        for _ in range(times):
            try:
                self.limits.take_request(self.tenant, self.clock[0])
                good += 1
            except RateLimitedError:
                pass
        return good

    @property
    def share(self) -> float:
        return self.limits._buckets[KEY].share


@pytest.fixture
async def link(redis_url: str) -> Any:
    made = RedisLink(redis_url, Keys())
    await made.open()
    yield made
    await made.close()


async def rounds(link: Any, routers: list[Router], seconds: int, asked: list[int]) -> list[int]:
    """What each lets in while so much is asked of it each second."""
    good = [0] * len(routers)
    for _ in range(seconds):
        routers[0].clock[0] += 1.0
        for number, router in enumerate(routers):
            good[number] += router.ask(asked[number])
        for router in routers:
            await router.exchange.exchange(link)
    return good


async def test_routers_divide_a_limit_by_what_is_asked_of_each(link: Any) -> None:
    """Together they give the limit and no more; the one of which little is asked serves all of it."""
    clock = [0.0]
    routers = [Router(clock), Router(clock)]
    await rounds(link, routers, 3, [0, 0])
    assert [router.share for router in routers] == pytest.approx([0.5, 0.5])
    await rounds(link, routers, 60, [2, 30])
    good = await rounds(link, routers, 60, [2, 30])
    assert good[0] == 120
    assert 0.9 * 600 <= sum(good) <= 600 + 2
    assert sum(router.share for router in routers) == pytest.approx(1.0)


async def test_a_router_that_is_gone_gets_no_share(link: Any) -> None:
    """Its field is there until it is taken away."""
    clock = [0.0]
    routers = [Router(clock), Router(clock)]
    await rounds(link, routers, 3, [5, 5])
    await rounds(link, routers[:1], int(rate_exchange.GONE_S) + 1, [5])
    assert routers[0].share == pytest.approx(1.0)
    assert routers[0].exchange.routers == 1
    await rounds(link, routers[:1], int(rate_exchange.FORGET_S) + 2, [5])
    assert len(await link.exchange_rates("x", b"", [])) == 2


async def test_without_redis_shares_hold_and_then_are_equal(link: Any) -> None:
    """Nobody is starved for long, and nobody gets more than all."""
    clock = [0.0]
    routers = [Router(clock), Router(clock)]
    await rounds(link, routers, 30, [0, 50])
    before = routers[0].share
    clock[0] += rate_exchange.HOLD_S - 1
    routers[0].exchange.expire()
    assert routers[0].share == before
    clock[0] += 2
    routers[0].exchange.expire()
    assert routers[0].share == pytest.approx(0.5)


async def test_what_others_wrote_there_does_no_harm(link: Any, redis_url: str) -> None:
    """No message, a huge one, figures that are none."""
    clock = [0.0]
    router = Router(clock)
    with sync_redis.Redis.from_url(redis_url) as client:
        for number, data in enumerate((b"", b"\xff", b"\x92\x01\xa1x", b"\x92\x01\x81\xa1a\xcb\xff\xf8" + bytes(6))):
            client.hset(Keys().rates, f"odd{number}", data)
        client.hset(Keys().rates, "huge", bytes(rate_exchange.MAX_MESSAGE_BYTES + 1))
    await rounds(link, [router], 2, [5])
    assert 0 < router.share <= 1
    with sync_redis.Redis.from_url(redis_url) as client:
        client.delete(Keys().rates)
        client.set(Keys().rates, "a text")
    await rounds(link, [router], 2, [5])
    assert 0 < router.share <= 1


async def test_without_limits_nothing_is_written(link: Any, redis_url: str) -> None:
    """Tenants without limits cost Redis nothing."""
    await RateExchange(TenantLimits()).exchange(link)
    with sync_redis.Redis.from_url(redis_url) as client:
        assert not client.exists(Keys().rates)


async def test_it_runs_until_cancelled(link: Any, eventually: Any) -> None:
    """Beside the rest of the feed."""
    clock = [0.0]
    router = Router(clock)
    running = asyncio.create_task(router.exchange.run(link))
    await eventually(lambda: router.exchange._exchanged_s is not None)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
