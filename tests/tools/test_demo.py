"""The demo as a user runs it: small, but with all its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tools.processes import wait_for

# A seed whose first sessions are three readers of documents, three short chats and a single prompt.
SMALL = ("--seed", "377", "--sessions", "7", "--users", "7", "--replicas", "2", "--num-blocks", "160")


def start(mark: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "router.cli", "demo", *SMALL, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DEMO_TEST_MARK": mark},
    )


def processes(mark: str) -> list[int]:
    """Processes that carry this mark in their environment: the demo, and what it started even after its own end."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEMO_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> Iterator[str]:
    """A mark of this test's own; what still carries it afterwards is killed."""
    mark = f"{os.getpid()}-{request.node.name}"
    yield mark
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_small_demo_ends_by_itself_with_its_figures(mark: str) -> None:
    """Four rows over the same requests, hits under every policy, and no process left."""
    demo = start(mark, "--once", "--json")
    out, err = demo.communicate(timeout=110)
    assert demo.returncode == 0, err
    figures = json.loads(out.splitlines()[-1])
    rows = figures["rows"]
    assert [row["policy"] for row in rows] == ["round-robin", "least-loaded", "cost-approximate", "cost"]
    assert len({row["requests"] for row in rows}) == 1
    assert all(0 < row["hit_rate"] < 1 and 0 < row["ttft_p50_s"] <= row["ttft_p90_s"] for row in rows)
    assert rows[3]["hit_rate"] > rows[0]["hit_rate"]
    assert figures["ledger_equals_engines"] is True
    assert rows[3]["hit_rate"] <= figures["bound_hit_rate"] + 0.02
    assert processes(mark) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_stopped_leaves_no_process(mark: str, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and even SIGKILL in the middle: every engine, agent, Valkey and router is gone."""
    demo = start(mark)
    wait_for("several children", lambda: len(processes(mark)) >= 4, [], 30)
    demo.send_signal(number)
    demo.communicate(timeout=30)
    wait_for("the end of all processes", lambda: not processes(mark), [], 10)
    assert demo.returncode == (-9 if number == signal.SIGKILL else 130)


IGNORING = "import os, signal, sys; signal.signal(signal.{0}, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"


def start_ignoring(mark: str, number: str) -> subprocess.Popen[str]:
    """Start it as a shell that is not interactive starts a background job (SIGINT), or as nohup does (SIGHUP)."""
    command = [sys.executable, "-m", "router.cli", "demo", *SMALL]
    environment = {**os.environ, "DEMO_TEST_MARK": mark}
    return subprocess.Popen(
        [sys.executable, "-c", IGNORING.format(number), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_demo_in_the_background_can_be_stopped(mark: str, number: signal.Signals) -> None:
    """`warmroute demo &` in a script is started with SIGINT ignored."""
    demo = start_ignoring(mark, "SIGINT")
    wait_for("several children", lambda: len(processes(mark)) >= 4, [], 30)
    demo.send_signal(number)
    demo.communicate(timeout=30)
    assert demo.returncode == 130
    wait_for("the end of all processes", lambda: not processes(mark), [], 10)


@pytest.mark.slow
def test_nohup_keeps_a_demo_alive(mark: str) -> None:
    """A hang-up that was ignored when it started stays ignored."""
    demo = start_ignoring(mark, "SIGHUP")
    wait_for("several children", lambda: len(processes(mark)) >= 4, [], 30)
    ignored = next(
        line for line in Path(f"/proc/{demo.pid}/status").read_text().splitlines() if line.startswith("SigIgn")
    )
    assert int(ignored.split()[1], 16) & 1 << (signal.SIGHUP - 1)
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=30)
    assert demo.returncode == 130


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's promise is Linux'")
def test_a_demo_ends_with_its_parent_where_asked(mark: str) -> None:
    """make is killed: the demo and its children end."""
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, "-m", "router.cli", "demo", *SMALL, "--with-parent"]
    parent = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DEMO_TEST_MARK": mark},
    )
    wait_for("several children", lambda: len(processes(mark)) >= 5, [], 30)
    parent.kill()
    parent.wait()
    wait_for("the end of all processes", lambda: not processes(mark), [], 20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--port", "99999"), "--port"),
        (("--port", "-5"), "--port"),
        (("--num-blocks", "1"), "--num-blocks"),
        (("--num-blocks", "20"), "give "),
    ],
)
def test_options_that_can_not_work_are_refused_before_anything_starts(
    mark: str, options: tuple[str, ...], said: str
) -> None:
    """Exit code 2, one line, rather than engines that fail late."""
    demo = start(mark, *options)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
