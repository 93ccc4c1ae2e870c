"""Starting, stopping, and what is said when it can't be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.errors import UsageError
from replica.simengine.faults import NAMES, Faults, parse

Start = Callable[..., Any]


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that something else listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port: int = holder.getsockname()[1]
        yield port


@pytest.fixture
def refused(golden: Path) -> Callable[..., str]:
    """`refused(*options)`: the one line that a start with these options ends with."""
    import sys

    def run(*options: str, tokenizer: Path | None = None) -> str:
        folder = str(tokenizer or golden / "tokenizer")
        command = [sys.executable, "-m", "router.cli", "simengine", "--model", "tiny", "--tokenizer", folder, *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert ended.returncode == 2
        assert ended.stdout == ""
        lines = ended.stderr.splitlines()
        assert len(lines) == 1, ended.stderr
        return lines[0]

    return run


def test_a_missing_tokenizer_folder_is_said_in_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    """With the option, the path and what should be there; exit code 2."""
    assert "--tokenizer" in refused(tokenizer=tmp_path / "nowhere")
    assert "tokenizer.json is missing" in refused(tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "can't be read" in refused(tokenizer=tmp_path)


@pytest.mark.parametrize("option", ["--port", "--events-port", "--replay-port"])
def test_a_port_in_use_is_said_in_one_line(refused: Callable[..., str], taken_port: int, option: str) -> None:
    """With the address, the option and the way out."""
    line = refused(option, str(taken_port))
    assert option in line
    assert str(taken_port) in line
    assert "any free one" in line


def test_a_model_length_that_the_blocks_do_not_hold_is_refused(refused: Callable[..., str]) -> None:
    """It names the number of blocks that would do: 1,000 tokens need 63 of 16 and the placeholder."""
    assert "--num-blocks 64" in refused("--num-blocks", "20", "--max-model-len", "1000")


def test_ports_of_ranks_that_would_collide_are_refused(refused: Callable[..., str]) -> None:
    """Rank r takes both ports plus r, so they must be that far apart."""
    line = refused("--data-parallel-size", "3", "--events-port", "20001", "--replay-port", "20003")
    assert "--replay-port" in line


def test_every_fault_has_a_name_and_a_wrong_one_is_refused(refused: Callable[..., str]) -> None:
    """The table is what help and errors list."""
    assert parse(["refuse=503", "event_delay_s=0.5"]) == Faults(refuse=503, event_delay_s=0.5)
    with pytest.raises(UsageError) as caught:
        parse(["nothing=1", "refuse=soon"])
    assert len(caught.value.problems) == 2
    line = refused("--fault", "nothing=1")
    assert all(name in line for name in NAMES)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(start_engine: Start, number: signal.Signals) -> None:
    """Also while a request runs."""
    engine = start_engine()
    engine.process.send_signal(number)
    assert engine.process.wait(timeout=10) == 0


async def test_refuse_answers_with_the_status(start_engine: Start) -> None:
    """Generation alone; the rest goes on."""
    engine = start_engine("--fault", "refuse=503")
    status, _, data = engine.send("POST", "/v1/completions", {"model": "tiny", "prompt": "Hi"})
    assert status == 503
    assert json.loads(data)["error"]["code"] == 503
    assert engine.send("GET", "/v1/models")[0] == 200


async def test_break_after_tokens_cuts_a_stream(start_engine: Start) -> None:
    """The client sees the connection end in the middle of the answer."""
    engine = start_engine("--fault", "break_after_tokens=3", "--decode-step-s", "0.001")
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 50, "stream": True}
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{engine.url}/v1/completions", json=body)
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


def test_die_after_tokens_ends_the_process(start_engine: Start) -> None:
    """As a crash would: exit code 1, no goodbye."""
    engine = start_engine("--fault", "die_after_tokens=5", "--decode-step-s", "0.001")
    with pytest.raises(OSError, match=r".*"):
        engine.send("POST", "/v1/completions", {"model": "tiny", "prompt": "Hi", "max_tokens": 50})
    assert engine.process.wait(timeout=10) == 1


async def test_first_byte_delay_holds_back_the_head(start_engine: Start) -> None:
    """Real seconds, whatever the time scale."""
    engine = start_engine("--fault", "first_byte_delay_s=0.3", "--decode-step-s", "0.001", "--time-scale", "50")
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        begun = loop.time()
        async with session.post(f"{engine.url}/v1/completions", json={"model": "tiny", "prompt": "Hi"}) as answer:
            assert answer.status == 200
            assert loop.time() - begun >= 0.3


def test_health_can_be_made_to_fail(start_engine: Start) -> None:
    """The fault `unhealthy` is the status."""
    assert start_engine("--fault", "unhealthy=503").send("GET", "/health")[0] == 503


def test_the_simulated_engine_loads_nothing_of_the_router() -> None:
    """Not even the hashes: what it computes is a second opinion."""
    import sys

    code = "import sys, replica.simengine.command; sys.exit(any(m.split('.')[0] == 'router' for m in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--port", "99999"),
        ("--events-port", "-5"),
        ("--replay-port", "65536"),
        ("--data-parallel-size", "3", "--events-port", "65534"),
        ("--num-blocks", "99999999999"),
        ("--data-parallel-size", "2000"),
        ("--lora", "tiny=/a"),
        ("--lora", "a=/a", "--lora", "a=/b"),
    ],
)
def test_what_no_engine_could_be_is_refused(golden: Path, options: tuple[str, ...]) -> None:
    """The last line names the option; nothing is bound modulo 2^16, and memory is not tried."""
    import sys

    command = [sys.executable, "-m", "router.cli", "simengine", "--model", "tiny"]
    command += ["--tokenizer", str(golden / "tokenizer"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert options[-2] in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_all_that_is_wrong_with_an_engine_is_said_at_once(tmp_path: Path) -> None:
    """A wrong fault hides neither an adapter nor a tokenizer."""
    import sys

    command = [sys.executable, "-m", "router.cli", "simengine", "--model", "tiny", "--tokenizer", str(tmp_path)]
    command += ["--fault", "foo", "--lora", "x", "--num-blocks", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    found = [line.split(":")[1].strip() for line in ended.stderr.splitlines()]
    assert found == ["--num-blocks", "--lora", "--fault", "--tokenizer"]
