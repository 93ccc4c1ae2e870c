"""The agent as a command: exit codes, and the engine that it starts itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest

SECRET = "a secret of sixteen bytes or more"


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


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def agent_of_engine(start, redis_url: str, golden: Path) -> Any:  # type: ignore[no-untyped-def]
    """`await agent_of_engine("--opt")`: an agent that starts a simulated engine itself."""

    async def run(*more: str) -> Any:
        port, events = free_port(), free_port()
        options = ("--engine-url", f"http://127.0.0.1:{port}", "--replica-id", "r0", "--lease-s", "2")
        command = (sys.executable, "-c", "import sys; from router.cli import main; sys.exit(main())", "simengine")
        model = ("--model", "tiny", "--tokenizer", str(golden / "tokenizer"), "--events-port", str(events))
        environment = {"WARMROUTE_AGENT_REDIS": redis_url, "WARMROUTE_AGENT_REGISTRATION_SECRET": SECRET}
        return await start("agent", *options, "--", *command, "--port", str(port), *model, *more, **environment)

    return run


async def ready_agent(one: Any) -> dict[str, Any]:
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
    assert mirror.client.exists(mirror.keys.lease("r0/0"))
    assert await one.end() == 0
    assert not mirror.client.exists(mirror.keys.lease("r0/0"))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url + "/health")


async def test_an_engine_is_told_to_stop_once_its_lease_is_gone(agent_of_engine, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """SIGTERM while a request runs: it is answered whole, and where the engine is found gone, its lease went before."""
    one = await agent_of_engine("--decode-step-s", "0.025")
    url = one.ready["http"]
    await ready_agent(one)
    lease = mirror.keys.lease("r0/0")
    body = {"model": "tiny", "prompt": list(range(64)), "max_tokens": 60, "ignore_eos": True}
    async with aiohttp.ClientSession() as session:

        async def ask() -> int:
            async with session.post(url + "/v1/completions", json=body) as got:
                await got.read()
                return got.status

        asked = asyncio.create_task(ask())
        await eventually(lambda: (getattr(mirror.messages("r0/0")[-1], "running", 0) or 0) > 0)
        one.process.terminate()
        looks = 0
        while True:
            try:
                async with session.get(url + "/health"):
                    looks += 1
            except aiohttp.ClientError:
                break
        assert not mirror.client.exists(lease)
        assert looks > 0
        assert await asked == 200
    async with asyncio.timeout(20):
        assert await one.process.wait() == 0


async def test_an_agent_ends_with_the_status_of_its_engine(agent_of_engine, mirror) -> None:  # type: ignore[no-untyped-def]
    """The engine dies by itself: the lease goes, and the agent's exit code is the engine's."""
    one = await agent_of_engine("--fault", "die_after_tokens=1")
    url = one.ready["http"]
    await ready_agent(one)
    body = {"model": "tiny", "prompt": list(range(64)), "max_tokens": 5}
    async with aiohttp.ClientSession() as session:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(url + "/v1/completions", json=body) as got:
                await got.read()
    async with asyncio.timeout(10):
        assert await one.process.wait() == 1
    assert not mirror.client.exists(mirror.keys.lease("r0/0"))


async def test_a_command_that_cannot_be_started_is_exit_code_2(redis_url: str) -> None:
    """One line, which names the command."""
    code, errors = await run_to_end("--engine-url", "http://127.0.0.1:9", "--redis", redis_url, "--", "/no/such/engine")
    assert (code, errors.count("\n")) == (2, 1)
    assert "/no/such/engine" in errors


STAND_IN = """#!{python}
import json, os, signal, sys
numbers = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
open(os.environ["TOLD"] + ".draft", "w").write(json.dumps(sys.argv[1:]))
os.rename(os.environ["TOLD"] + ".draft", os.environ["TOLD"])
told = set()
while len(told) < 4:
    told.add(signal.sigwait(numbers))
sys.exit(44)
"""


@pytest.fixture
async def stand_in(redis_url: str, tmp_path: Path, eventually: Any) -> Any:
    """`agent, words = await stand_in("vllm", "serve", "m")`: an agent that starts a stand-in, and the words it got.

    The stand-in ends by 44 once it got all four signals that mean it alone.
    """
    running = []
    short = tempfile.TemporaryDirectory()  # a socket's path has 107 bytes at most

    async def run(*command: str, own: tuple[str, ...] = (), temporary: str = short.name) -> Any:
        program = tmp_path / command[0]
        program.write_text(STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
        told = tmp_path / "told"
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "import sys; from router.cli import main; sys.exit(main())", "agent"),
            *("--engine-url", "http://127.0.0.1:9", *own, "--", str(program), *command[1:]),
            env={**os.environ, "WARMROUTE_AGENT_REDIS": redis_url, "TOLD": str(told), "TMPDIR": temporary},
            stderr=asyncio.subprocess.DEVNULL,
        )
        running.append(agent)
        await eventually(told.exists)
        return agent, json.loads(told.read_text())

    yield run
    for agent in running:
        with contextlib.suppress(ProcessLookupError):
            agent.terminate()
        await agent.wait()
    short.cleanup()


async def test_an_engine_is_started_with_what_it_lacks(stand_in) -> None:  # type: ignore[no-untyped-def]
    """Hash algorithm, events, replay and cached tokens behind the operator's own words; the sockets' folder is private,
    and goes with the engine. Signals that mean the engine alone are passed on, and its status is the agent's."""
    agent, words = await stand_in("vllm", "serve", "m", "--port", "9")
    assert words[:4] == ["serve", "m", "--port", "9"]
    assert words[4:8] == [
        "--prefix-caching-hash-algo",
        "sha256_cbor",
        "--enable-prompt-tokens-details",
        "--kv-events-config",
    ]
    told = json.loads(words[8])
    folder = Path(told["endpoint"].removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(told["replay_endpoint"].removeprefix("ipc://")).parent == folder
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        agent.send_signal(number)
    async with asyncio.timeout(20):
        assert await agent.wait() == 44
    assert not folder.exists()


async def test_an_engine_whose_sockets_find_no_folder_has_them_at_ports(stand_in, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A temporary folder with a name that no socket takes; nothing is left there."""
    long = tmp_path / ("long" * 20)
    long.mkdir()
    _, words = await stand_in("vllm", "serve", "m", temporary=str(long))
    assert json.loads(words[-1])["endpoint"].startswith("tcp://*:")
    assert list(long.iterdir()) == []


async def test_an_engine_may_be_started_as_it_is(stand_in) -> None:  # type: ignore[no-untyped-def]
    """By an option; what the agent does not know is left alone in any case."""
    _, words = await stand_in("vllm", "serve", "m", own=("--engine-as-it-is",))
    assert words == ["serve", "m"]


async def test_an_engine_that_a_signal_ends_has_the_status_that_shells_give(stand_in) -> None:  # type: ignore[no-untyped-def]
    """SIGTERM ends the stand-in: 128 + 15."""
    agent, words = await stand_in("start.sh", "m")
    assert words == ["m"]
    agent.terminate()
    async with asyncio.timeout(20):
        assert await agent.wait() == 143


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
