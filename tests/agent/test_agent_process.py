"""The command as a whole: an agent process beside a simulated engine process, and a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.kv import registration
from router.kv.hashes import chain
from router.kv.registration import Registration
from router.kv.schemes import HashAlgorithm, Scheme

SECRET = "a secret of sixteen bytes or more"
UNIT = "r0/0"


class Process:
    """A `warmroute` command in operation, and its ready line."""

    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(10):
            return await self.process.wait()


@pytest.fixture
async def start() -> AsyncIterator[Any]:
    """Start `warmroute` commands; all are killed after the test."""
    running: list[Process] = []

    async def run(*arguments: str, **environment: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from router.cli import main; sys.exit(main())",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        running.append(Process(process, {}))
        assert process.stdout is not None
        async with asyncio.timeout(20):
            running[-1].ready = json.loads(await process.stdout.readline())
        return running[-1]

    yield run
    for one in running:
        with contextlib.suppress(ProcessLookupError):
            one.process.kill()
        await one.process.wait()


@pytest.fixture
async def engine(start, golden: Path) -> Any:  # type: ignore[no-untyped-def]
    """Start a simulated engine; with a ready line, at the addresses of an earlier one."""

    async def run(at: dict[str, Any] | None = None, *more: str) -> Process:
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

    async def run(beside: Process, *more: str) -> Process:
        options = ("--engine-url", beside.ready["http"], "--replica-id", "r0", "--lease-s", "2", *more)
        environment = {"WARMROUTE_AGENT_REDIS": redis_url, "WARMROUTE_AGENT_REGISTRATION_SECRET": SECRET}
        return await start("agent", *options, **environment)

    return run


async def complete(beside: Process, token_ids: list[int]) -> None:
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
    """Killed: the lease goes. Restarted in place: a new epoch that holds the new life's blocks alone."""
    one = await engine()
    await agent(one)
    await complete(one, PROMPT)
    await eventually(lambda: mirror.dump(UNIT) == blocks(PROMPT))
    epoch = lease(mirror).epoch  # type: ignore[union-attr]
    await one.end(signal.SIGKILL)
    await eventually(lambda: lease(mirror) is None)
    assert mirror.messages(UNIT)[-1].state == "gone"
    again = await engine(one.ready)
    await complete(again, PROMPT[16:])
    await eventually(lambda: lease(mirror) is not None and mirror.dump(UNIT) == blocks(PROMPT[16:]), timeout_s=20)
    assert lease(mirror).epoch > epoch  # type: ignore[union-attr]


async def test_an_engine_without_prefix_cache_is_not_trusted_for_any(engine, agent, mirror) -> None:  # type: ignore[no-untyped-def]
    """Trust is `none`, with the reason."""
    await agent(await engine(None, "--no-prefix-caching"))
    found = lease(mirror)
    assert found is not None
    assert (found.trust, found.reason) == ("none", "the engine runs without a prefix cache")


async def test_a_wrong_seed_is_told(engine, agent, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """The engine has a seed that the agent was not told: approximate, with what to do."""
    one = await engine(None, "--seed", "7")
    await agent(one)
    await complete(one, PROMPT)
    await eventually(lambda: "--hash-seed" in (lease(mirror).reason or ""))  # type: ignore[union-attr]
    assert lease(mirror).trust == "approximate"  # type: ignore[union-attr]


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
    assert f'warmroute_agent_events{{kind="BlockStored",unit="{UNIT}"}} 1.0' in metrics
    assert str(PROMPT[0]) + ", " + str(PROMPT[1]) not in metrics


async def run_to_end(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys; from router.cli import main; sys.exit(main())",
        "agent",
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_a_malformed_redis_url_is_exit_code_2() -> None:
    """One line, no traceback."""
    code, errors = await run_to_end("--engine-url", "http://127.0.0.1:9", "--redis", "nonsense")
    assert (code, errors.count("\n")) == (2, 1)
    assert "--redis" in errors


async def test_a_port_in_use_is_one_line(redis_url: str) -> None:
    """The line names the option and what to do; exit code 2."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code, errors = await run_to_end(
        "--engine-url", "http://127.0.0.1:9", "--redis", redis_url, "--listen", f"127.0.0.1:{port}"
    )
    server.close()
    assert (code, errors.count("\n")) == (2, 1)
    assert "--listen" in errors


async def test_no_engine_within_the_wait_is_exit_code_1(redis_url: str, mirror) -> None:  # type: ignore[no-untyped-def]
    """With --wait-ready 0.3 and no engine: it gives up, says so, and has registered nothing."""
    code, errors = await run_to_end("--engine-url", "http://127.0.0.1:9", "--redis", redis_url, "--wait-ready", "0.3")
    assert code == 1
    assert "--wait-ready" in errors
    assert mirror.client.dbsize() == 0


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


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def agent_of_engine(start, redis_url: str, golden: Path) -> Any:  # type: ignore[no-untyped-def]
    """`await agent_of_engine("--opt")`: an agent that starts a simulated engine itself."""

    async def run(*more: str) -> Process:
        port, events = free_port(), free_port()
        options = ("--engine-url", f"http://127.0.0.1:{port}", "--replica-id", "r0", "--lease-s", "2")
        command = (sys.executable, "-c", "import sys; from router.cli import main; sys.exit(main())", "simengine")
        model = ("--model", "tiny", "--tokenizer", str(golden / "tokenizer"), "--events-port", str(events))
        environment = {"WARMROUTE_AGENT_REDIS": redis_url, "WARMROUTE_AGENT_REGISTRATION_SECRET": SECRET}
        return await start("agent", *options, "--", *command, "--port", str(port), *model, *more, **environment)

    return run


async def ready_agent(one: Process) -> dict[str, Any]:
    """Return the agent's ready line; the engine writes its own to the same output."""
    assert one.process.stdout is not None
    while one.ready["ready"] != "agent":
        async with asyncio.timeout(20):
            one.ready = json.loads(await one.process.stdout.readline())
    return one.ready


async def test_an_engine_under_its_agent_ends_with_it(agent_of_engine, mirror) -> None:  # type: ignore[no-untyped-def]
    """SIGTERM takes the lease away and is passed on; the agent waits for the engine and exits with its status, 0."""
    one = await agent_of_engine()
    url = one.ready["http"]  # the engine's line comes first: an agent is ready once its engine answers
    await ready_agent(one)
    assert lease(mirror) is not None
    assert await one.end() == 0
    assert lease(mirror) is None
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url + "/health")


async def test_an_agent_ends_with_the_status_of_its_engine(agent_of_engine, mirror) -> None:  # type: ignore[no-untyped-def]
    """The engine dies by itself: the lease goes, and the agent's exit code is the engine's."""
    one = await agent_of_engine("--fault", "die_after_tokens=1")
    url = one.ready["http"]
    await ready_agent(one)
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5}
    async with aiohttp.ClientSession() as session:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(url + "/v1/completions", json=body) as got:
                await got.read()
    async with asyncio.timeout(10):
        assert await one.process.wait() == 1
    assert lease(mirror) is None


async def test_a_command_that_cannot_be_started_is_exit_code_2(redis_url: str) -> None:
    """One line, which names the command."""
    code, errors = await run_to_end("--engine-url", "http://127.0.0.1:9", "--redis", redis_url, "--", "/no/such/engine")
    assert (code, errors.count("\n")) == (2, 1)
    assert "/no/such/engine" in errors


async def test_the_engine_does_not_see_the_agents_secrets(redis_url: str) -> None:
    """Redis' password and the secret of leases are not in the engine's environment; its status is the agent's."""
    check = "import os, sys; sys.exit(7 if not any('WARMROUTE_AGENT' in name for name in os.environ) else 8)"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import sys; from router.cli import main; sys.exit(main())", "agent"),
        *("--engine-url", "http://127.0.0.1:9", "--", sys.executable, "-c", check),
        env={**os.environ, "WARMROUTE_AGENT_REDIS": redis_url, "WARMROUTE_AGENT_REGISTRATION_SECRET": SECRET},
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(20):
        assert await process.wait() == 7
