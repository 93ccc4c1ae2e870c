"""How every command ends: what an interrupted one says, and one that nobody reads."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from router.tools.processes import wait_for

SLOW_IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
from router import cli
cli.COMMANDS["slow"] = cli.Command("slow_to_import", "router", "")
sys.exit(cli.main(["slow"]))
"""


def test_ctrl_c_while_a_command_is_being_imported_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    """Imports are the first second of every start."""
    (tmp_path / "slow_to_import.py").write_text("import time; print('importing', flush=True); time.sleep(60)")
    command = [sys.executable, "-c", SLOW_IMPORT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


def test_a_router_loads_nothing_that_only_some_fleets_need() -> None:
    """Imports are most of a start: what a configuration may ask for is loaded where one asks for it."""
    seldom = ("dns", "kubernetes_asyncio", "grpc", "mistral_common", "tiktoken", "zmq", "rich", "locust")
    code = f"import sys, router.supervisor; print([name for name in {seldom} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "[]\n"


def router_config(tmp_path: Path, golden: Path, **changes: Any) -> str:
    path = tmp_path / "router.yaml"
    model = {"name": "tiny", "tokenizer": str(golden / "tokenizer")}
    path.write_text(
        json.dumps({"listen": "127.0.0.1:0", "models": [model], "replicas": [{"url": "http://127.0.0.1:1"}], **changes})
    )
    return str(path)


def arguments(command: str, port: int, tmp_path: Path, golden: Path) -> list[str]:
    if command == "router":
        return ["--config", router_config(tmp_path, golden, listen=f"127.0.0.1:{port}")]
    return ["--model", "tiny", "--tokenizer", str(golden / "tokenizer"), "--port", str(port)]


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            return connection.recv(100).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


@pytest.mark.parametrize("command", ["router", "simengine"])
def test_a_server_whose_output_nobody_reads_serves_and_ends_well(tmp_path: Path, golden: Path, command: str) -> None:
    """`warmroute router ... | true`: the ready line is lost, nothing else."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "router.cli", command, *arguments(command, port, tmp_path, golden)]
    process = subprocess.Popen(words, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    try:
        wait_for("an answer", lambda: answers(port) or process.poll() is not None, [], 30)
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_a_command_whose_reader_has_left_says_nothing(tmp_path: Path, golden: Path) -> None:
    """`warmroute --help | true` prints no traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "router.cli", "--help"]
    with subprocess.Popen(words, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_an_address_that_cannot_be_looked_up_is_one_line(tmp_path: Path, golden: Path) -> None:
    """Not what the resolver raises."""
    path = router_config(tmp_path, golden, listen=f"{'a' * 70}.svc:0", admin={"token": "a-long-token"})
    words = [sys.executable, "-m", "router.cli", "router", "--config", path]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert [line.split(":")[1].strip() for line in ended.stderr.strip().split("\n")] == ["listen"]
