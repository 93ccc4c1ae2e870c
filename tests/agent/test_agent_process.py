"""The command as a whole: an agent process beside a simulated engine process, and a real Valkey."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.kv import registration
from router.kv.hashes import chain
from router.kv.registration import Registration
from router.kv.schemes import HashAlgorithm, Scheme
from router.kv.wire import StateChange

SECRET = "a secret of sixteen bytes or more"
UNIT = "r0/0"


@pytest.fixture
async def engine(start, golden: Path) -> Any:  # type: ignore[no-untyped-def]
    """Start a simulated engine; with a ready line, at the addresses of an earlier one."""

    async def run(at: dict[str, Any] | None = None, *more: str) -> Any:
        port, events, replay = "0", "0", "0"
        if at is not None:
            port, events, replay = (
                address.rsplit(":", 1)[1] for address in (at["http"], at["events"][0], at["replay"][0])
            )
        sockets = ("--port", port, "--events-port", events, "--replay-port", replay)
        model = ("--model", "tiny", "--tokenizer", str(golden / "tokenizer"), "--num-blocks", "200")
        return await start("simengine", *sockets, *model, "--hash-algo", "sha256_cbor", *more)

    return run


@pytest.fixture
async def agent(start, redis_url: str) -> Any:  # type: ignore[no-untyped-def]
    """Start an agent beside an engine, with short leases."""

    async def run(beside: Any, *more: str) -> Any:
        options = ("--engine-url", beside.ready["http"], "--replica-id", "r0", "--lease-s", "2", *more)
        environment = {"WARMROUTE_AGENT_REDIS": redis_url, "WARMROUTE_AGENT_REGISTRATION_SECRET": SECRET}
        return await start("agent", *options, **environment)

    return run


async def complete(beside: Any, token_ids: list[int]) -> None:
    body = {"model": "tiny", "prompt": token_ids, "max_tokens": 1}
    async with (
        aiohttp.ClientSession() as session,
        session.post(beside.ready["http"] + "/v1/completions", json=body) as got,
    ):
        assert got.status == 200, await got.text()


def lease(mirror: Any) -> Registration | None:
    data = mirror.client.get(mirror.keys.lease(UNIT))
    return None if data is None else registration.decode(data, SECRET.encode(), UNIT)


def blocks(token_ids: list[int]) -> set[tuple[int, int, int]]:
    """Return the blocks of a prompt by the library that routers use."""
    return {(h, 0, 0) for h in chain(token_ids, Scheme(HashAlgorithm.SHA256_CBOR, 16))}


PROMPT = list(range(100, 180))
CBOR16 = Scheme(HashAlgorithm.SHA256_CBOR, 16)


async def test_a_replica_shows_up_and_goes(engine, agent, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """Ready means that the signed lease is there; blocks arrive and prove the scheme; SIGTERM takes the lease away."""
    one = await engine()
    beside = await agent(one)
    assert (beside.ready["ready"], beside.ready["replica"], beside.ready["units"]) == ("agent", "r0", [UNIT])
    found = lease(mirror)
    assert found is not None
    assert (found.url, found.block_size, found.num_blocks, found.algorithm) == (
        one.ready["http"],
        16,
        200,
        "sha256_cbor",
    )
    assert [model.name for model in found.models] == ["tiny"]
    assert mirror.dump(UNIT) == set()
    await complete(one, PROMPT)
    await eventually(lambda: mirror.dump(UNIT) == blocks(PROMPT))
    await eventually(lambda: lease(mirror).trust == "exact")  # type: ignore[union-attr]
    assert await beside.end() == 0
    assert lease(mirror) is None
    assert mirror.client.zcard(mirror.keys.registry) == 0
    assert mirror.messages(UNIT)[-1].state == "gone"


async def test_load_is_told_twice_a_second(engine, agent, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """Within two seconds at least four heartbeats with a known load come."""
    await agent(await engine())
    before = len(mirror.messages(UNIT))
    began_s = time.monotonic()

    def beats() -> list[Any]:
        return [m for m in mirror.messages(UNIT)[before:] if getattr(m, "running", None) is not None]

    await eventually(lambda: len(beats()) >= 4)
    assert time.monotonic() - began_s < 2.5


async def test_an_agent_that_attaches_too_late_proves_the_scheme_by_its_probe(
    engine, agent, mirror, eventually
) -> None:  # type: ignore[no-untyped-def]
    """The replay socket is out of reach, so no root was seen: the probe's block shows up and proves the scheme."""
    one = await engine()
    await complete(one, PROMPT)
    await agent(one, "--kv-replay", "tcp://127.0.0.1:9")
    await eventually(lambda: lease(mirror).trust == "exact", timeout_s=20)  # type: ignore[union-attr]
    assert len(mirror.dump(UNIT)) == 1


async def test_an_engine_that_dies_leaves_and_comes_back_empty(engine, agent, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """Killed: the lease goes. Restarted in place: a new epoch that holds the new life's blocks alone.

    A snapshot falls due while it is away: the agent answers all the same, and ends when it is told to.
    """
    one = await engine()
    beside = await agent(one, "--snapshot-s", "0.1")
    await complete(one, PROMPT)
    await eventually(lambda: mirror.dump(UNIT) == blocks(PROMPT))
    epoch = lease(mirror).epoch  # type: ignore[union-attr]
    await one.end(signal.SIGKILL)
    await eventually(lambda: lease(mirror) is None)
    assert mirror.messages(UNIT)[-1].state == "gone"
    async with aiohttp.ClientSession() as session, session.get(beside.ready["http"] + "/healthz") as got:
        assert (await got.json())["engine"] == "gone"
    again = await engine(one.ready)
    await complete(again, PROMPT[16:])
    await eventually(lambda: lease(mirror) is not None and mirror.dump(UNIT) == blocks(PROMPT[16:]), timeout_s=20)
    assert lease(mirror).epoch > epoch  # type: ignore[union-attr]
    assert await beside.end() == 0


async def test_an_engine_without_prefix_cache_is_not_trusted_for_any(engine, agent, mirror) -> None:  # type: ignore[no-untyped-def]
    """Trust is `none`, with the reason."""
    await agent(await engine(None, "--no-prefix-caching"))
    found = lease(mirror)
    assert found is not None
    assert (found.trust, found.reason) == ("none", "the engine runs without a prefix cache")


async def test_a_wrong_seed_is_told(engine, agent, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """The engine has a seed that the agent was not told: what to do, and meanwhile blocks are named by their tokens."""
    one = await engine(None, "--seed", "7")
    await agent(one)
    await complete(one, PROMPT)
    await eventually(lambda: "--hash-seed" in (lease(mirror).reason or ""))  # type: ignore[union-attr]
    await eventually(lambda: lease(mirror).trust == "mapped")  # type: ignore[union-attr]
    found = lease(mirror)
    assert found is not None
    own = Scheme(HashAlgorithm(found.algorithm), found.block_size, found.seed)
    await eventually(lambda: mirror.dump(UNIT) == {(block, 0, 0) for block in chain(PROMPT, own)})


async def test_two_ranks_are_two_units(engine, agent, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """Each data-parallel rank has a lease, an epoch and blocks of its own."""
    one = await engine(None, "--data-parallel-size", "2")
    beside = await agent(one)
    assert beside.ready["units"] == ["r0/0", "r0/1"]
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1}
    async with aiohttp.ClientSession() as session:
        url, headers = one.ready["http"] + "/v1/completions", {"x-data-parallel-rank": "1"}
        async with session.post(url, json=body, headers=headers) as got:
            assert got.status == 200
    await eventually(lambda: mirror.dump("r0/1") == blocks(PROMPT))
    assert mirror.dump("r0/0") == set()


async def test_health_and_metrics_are_served(engine, agent, eventually) -> None:  # type: ignore[no-untyped-def]
    """/healthz tells trust and blocks of each unit, /metrics counts events and lag."""
    one = await engine()
    beside = await agent(one)
    await complete(one, PROMPT)
    async with aiohttp.ClientSession(beside.ready["http"]) as session:

        async def status() -> dict[str, Any]:
            async with session.get("/healthz") as got:
                return (await got.json())["units"][UNIT]

        async def counted() -> bool:
            found = await status()
            return (found["blocks"], found["trust"], found["registered"]) == (5, "exact", True)

        await eventually(counted)

        async def text() -> str:
            async with session.get("/metrics") as got:
                return await got.text()

        lag = f'warmroute_agent_lag_seconds_count{{unit="{UNIT}"}} 1.0'

        async def published() -> bool:
            return lag in await text()

        await eventually(published)
        metrics = await text()
    assert f'warmroute_agent_events_total{{kind="BlockStored",unit="{UNIT}"}} 1.0' in metrics
    assert str(PROMPT[0]) + ", " + str(PROMPT[1]) not in metrics


async def test_redis_that_is_not_there_is_said_in_one_line(engine) -> None:  # type: ignore[no-untyped-def]
    """The agent keeps trying; its line names the address and not the password; SIGTERM still ends it with 0."""
    one = await engine()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import sys; from router.cli import main; sys.exit(main())", "agent"),
        *("--engine-url", one.ready["http"], "--log-format", "console"),
        env={**os.environ, "WARMROUTE_AGENT_REDIS": "redis://:hunter22@127.0.0.1:9/0"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(20):
        line = (await process.stderr.readline()).decode()
        process.send_signal(signal.SIGTERM)
        rest = (await process.stderr.read()).decode()
        assert await process.wait() == 0
    assert "redis at 127.0.0.1:9" in line
    assert "hunter22" not in line + rest
    assert "Traceback" not in rest


@pytest.mark.parametrize("metrics", [None, "", 'vllm:cache_config_info{block_size="32"} 1.0\n'])
async def test_events_alone_prove_an_engine(  # type: ignore[no-untyped-def]
    start, publisher, redis_url, mirror, events, eventually, metrics
) -> None:
    """An engine without /metrics, without its cache in them, or with another block size there: the events tell it.

    The blocks are in Redis and the lease says exact soon after the first root block, and the lane tells of it.
    """

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny", "root": "tiny", "parent": None}]})
        if request.path == "/metrics" and metrics is not None:
            return web.Response(text=metrics)
        return web.Response(status=200 if request.path == "/health" else 404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        sockets = ("--kv-events", publisher.events_address, "--kv-replay", publisher.replay_address)
        environment = {"WARMROUTE_AGENT_REDIS": redis_url, "WARMROUTE_AGENT_REGISTRATION_SECRET": SECRET}
        beside = await start("agent", "--engine-url", url, "--replica-id", "r0", *sockets, **environment)
        found = lease(mirror)
        assert found is not None
        assert found.trust == "approximate"
        said = sum(isinstance(message, StateChange) for message in mirror.messages(UNIT))
        root = events.stored(chain(PROMPT, CBOR16), token_ids=PROMPT, block_size=16)
        publisher.publish([root])
        await eventually(lambda: lease(mirror).trust == "exact", timeout_s=2)  # type: ignore[union-attr]
        found = lease(mirror)
        assert found is not None
        assert (found.algorithm, found.block_size) == ("sha256_cbor", 16)

        def states() -> list[StateChange]:
            return [message for message in mirror.messages(UNIT) if isinstance(message, StateChange)]

        await eventually(lambda: len(states()) > said)
        assert states()[said:] == [StateChange(UNIT, found.epoch, "ready")]
        await eventually(lambda: mirror.dump(UNIT) == blocks(PROMPT))
        async with aiohttp.ClientSession() as session, session.get(beside.ready["http"] + "/metrics") as got:
            counted = 'scheme_conflicts_total{kind="block_size",unit="r0/0"} 1.0' in await got.text()
        assert counted == (metrics is not None and "32" in metrics)
    finally:
        await runner.cleanup()
