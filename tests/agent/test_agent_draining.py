"""Leaving in order, as a command beside a simulated engine and a real Valkey; and an operator's order from Redis."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.agent import redis_link
from replica.agent.draining import TELL_S, TOLD_MARGIN_S, DrainOrders, IdleWatch
from router.kv import drains, registration
from router.kv.drains import Drain
from router.kv.engine_metrics import Load
from router.kv.keys import Keys

SECRET = "a secret of sixteen bytes or more"
UNIT = "r0/0"
IDLE, BUSY = Load(0, 0, 0.0), Load(1, 0, 0.1)


@pytest.fixture
async def busy(start, golden: Path, redis_url: str) -> Any:  # type: ignore[no-untyped-def]
    """`engine, agent, answer = await busy("--opt")`: an agent whose engine computes a request of about 1.5 s."""
    tasks: list[asyncio.Task[Any]] = []

    async def run(*more: str, tokens: int = 60) -> Any:
        model = ("--model", "tiny", "--tokenizer", str(golden / "tokenizer"), "--decode-step-s", "0.025")
        engine = await start("simengine", *model)
        options = ("--engine-url", engine.ready["http"], "--replica-id", "r0", "--lease-s", "2", *more)
        environment = {"WARMROUTE_AGENT_REDIS": redis_url, "WARMROUTE_AGENT_REGISTRATION_SECRET": SECRET}
        agent = await start("agent", *options, **environment)
        answer = asyncio.create_task(ask(engine.ready["http"], tokens))
        tasks.append(answer)
        return engine, agent, answer

    yield run
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ask(url: str, tokens: int) -> int:
    body = {"model": "tiny", "prompt": list(range(100, 140)), "max_tokens": tokens, "ignore_eos": True}
    async with aiohttp.ClientSession() as session, session.post(url + "/v1/completions", json=body) as got:
        await got.read()
        return got.status


def state(mirror: Any) -> str | None:
    data = mirror.client.get(mirror.keys.lease(UNIT))
    return None if data is None else registration.decode(data, SECRET.encode(), UNIT).state


async def running(mirror: Any, eventually: Any) -> None:
    await eventually(lambda: (getattr(mirror.messages(UNIT)[-1], "running", 0) or 0) > 0)


async def test_what_runs_finishes_before_the_lease_goes(busy, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """SIGTERM: the lease says draining at once, the lane tells so, the request ends, and only then the lease goes."""
    _, agent, answer = await busy()
    await running(mirror, eventually)
    agent.process.send_signal(signal.SIGTERM)
    await eventually(lambda: state(mirror) == "draining")
    assert not answer.done()
    while not answer.done():
        assert state(mirror) == "draining"
        await asyncio.sleep(0.02)
    assert await answer == 200
    async with asyncio.timeout(10):
        assert await agent.process.wait() == 0
    assert state(mirror) is None
    told = [message.state for message in mirror.messages(UNIT) if hasattr(message, "state")]
    assert told[-2:] == ["draining", "gone"]


async def test_the_wait_is_bounded(busy, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """With --drain-s 0.5 a request that takes a minute is not waited for."""
    _, agent, answer = await busy("--drain-s", "0.5", tokens=2400)
    await running(mirror, eventually)
    assert await agent.end() == 0
    assert state(mirror) is None
    assert not answer.done()


async def test_a_second_signal_ends_the_wait(busy, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """The operator has decided: the lease goes at once."""
    _, agent, answer = await busy(tokens=2400)
    await running(mirror, eventually)
    agent.process.send_signal(signal.SIGTERM)
    await eventually(lambda: state(mirror) == "draining")
    assert await agent.end() == 0
    assert state(mirror) is None
    assert not answer.done()


async def test_an_engine_that_dies_meanwhile_ends_the_wait(busy, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """Nothing runs in an engine that is gone."""
    engine, agent, _ = await busy(tokens=2400)
    await running(mirror, eventually)
    agent.process.send_signal(signal.SIGTERM)
    await eventually(lambda: state(mirror) == "draining")
    await engine.end(signal.SIGKILL)
    async with asyncio.timeout(20):
        assert await agent.process.wait() == 0


async def test_an_operators_order_is_obeyed_and_undone(busy, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """An order in Redis makes the lease say draining; without it the lease says ready again. The agent goes on."""
    _, agent, answer = await busy(tokens=4)
    assert await answer == 200
    order = drains.encode(Drain("r0", time.time() + 86_400), SECRET.encode())
    mirror.client.set(mirror.keys.drain("r0"), order)
    await eventually(lambda: state(mirror) == "draining")
    mirror.client.delete(mirror.keys.drain("r0"))
    await eventually(lambda: state(mirror) == "ready")
    assert await agent.end() == 0


OWN, OTHER = b"s" * 16, b"t" * 16


def order(replica_id: str, for_s: float, secret: bytes | None) -> bytes:
    return drains.encode(Drain(replica_id, time.time() + for_s), secret)


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (lambda: order("r0", 60, OWN), True),
        (lambda: order("r0", 4e9, OWN), False),
        (lambda: order("r0", 60, OTHER), False),
        (lambda: order("r0", 60, None), False),
        (lambda: order("r1", 60, OWN), False),
        (lambda: order("r0", -1, OWN), False),
        (lambda: b"\xff", False),
        (lambda: b"{}", False),
    ],
    ids=["own", "too long", "other secret", "unsigned", "other replica", "over", "rubbish", "empty"],
)
async def test_only_a_signed_order_of_its_own_that_is_not_over_counts(redis_url: str, make: Any, held: bool) -> None:
    """Who can write to Redis and has no secret can't empty the fleet, nor can one write an old order again."""
    client = redis_link.connect(redis_url)
    await client.run("r0", "SET", Keys().drain("r0"), make())
    orders = DrainOrders(client, Keys(), "r0", OWN)
    await orders.look()
    assert orders.hold(time.time()) is held
    await client.close()


def test_idle_is_two_scrapes_in_a_row_after_routers_were_told() -> None:
    """Scrapes from before do not count, nor do failed ones, and one busy scrape begins anew."""
    watch = IdleWatch(100.0)
    for at_s in (100.1, 100.5):
        watch.saw({"0": IDLE}, at_s)
    watch.told(100.6)
    watch.saw({"0": IDLE}, 100.6 + TOLD_MARGIN_S / 2)
    assert not watch.is_idle
    for loads in ({"0": IDLE}, None, {"0": IDLE}, {"0": IDLE, "1": BUSY}, {"0": IDLE}, {}, {"0": IDLE}):
        watch.saw(loads, 101.0)
        assert not watch.is_idle
    watch.saw({"0": IDLE}, 101.4)
    assert watch.is_idle


def test_a_redis_that_cannot_be_told_does_not_keep_an_idle_engine() -> None:
    """After two seconds idleness counts all the same."""
    watch = IdleWatch(100.0)
    for at_s in (100.0 + TELL_S, 100.0 + TELL_S + TOLD_MARGIN_S, 103.0):
        assert not watch.is_idle
        watch.saw({"": IDLE}, at_s)
    assert watch.is_idle
