"""`.ci/run` fails when it must, ends what takes too long, and finds what is left behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
FINE = "\t@echo it ran; cat\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(test=..., vllm=..., browser=..., ops=..., soak=...)`: the script beside a Makefile with these recipes, with
    stand-ins for Chromium and promtool on PATH unless `tools` is False; `make test` may take 3 s."""

    def finished(
        test: str = FINE,
        vllm: str = FINE,
        browser: str = FINE,
        ops: str = FINE,
        soak: str = FINE,
        *,
        tools: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / ".ci" / "run"
        script.parent.mkdir()
        text = SCRIPT.read_text(encoding="utf-8")
        assert "TEST_MINUTES=18" in text
        script.write_text(text.replace("TEST_MINUTES=18", "TEST_MINUTES=0.05"), encoding="utf-8")
        recipes = {"test": test, "test-vllm": vllm, "test-browser": browser, "test-ops": ops, "soak": soak}
        makefile = "".join(f"{name}:\n{recipe}" for name, recipe in recipes.items())
        (tmp_path / "Makefile").write_text(makefile, encoding="utf-8")
        # Not as a child of another make, whose jobserver this one must not look for.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        environ["PATH"] = f"{_stand_ins(tmp_path, tools)}:{environ['PATH']}"
        command = ["bash", str(script)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, stdin=subprocess.PIPE)

    return finished


def _stand_ins(folder: Path, tools: bool) -> Path:
    """A folder for PATH: nothing is installed by apt here, and the tools are there or, in its eyes, can't be had."""
    binaries = folder / "bin"
    binaries.mkdir()
    scripts = {"apt-get": "exit 1"} | ({"chromium": "exit 0", "promtool": "exit 0"} if tools else {})
    for name, script in scripts.items():
        (binaries / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (binaries / name).chmod(0o755)
    return binaries


def test_all_commands_run(run: Run) -> None:
    """All test commands run, with an empty standard input, and the script says how long each took."""
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("it ran") == 5
    for command in ("test", "test-vllm", "test-browser", "test-ops", "soak ARGS=--minutes 10"):
        assert f"make {command} passed in" in done.stdout


@pytest.mark.parametrize("which", ["test", "vllm", "browser", "ops", "soak"])
def test_failure_fails(run: Run, which: str) -> None:
    """A failing command fails the whole, and the others run all the same."""
    done = run(**{which: "\t@exit 3\n"})
    assert done.returncode == 1
    assert done.stdout.count("it ran") == 4


def test_what_needs_a_tool_that_cannot_be_had_is_left_out(run: Run) -> None:
    """Without Chromium and promtool, and without a way to install them, the rest runs and it is said."""
    if shutil.which("chromium") or shutil.which("promtool"):
        pytest.skip("this machine has them")
    done = run(tools=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("it ran") == 3
    assert "no chromium: make test-browser is left out" in done.stdout
    assert "no promtool: make test-ops is left out" in done.stdout


def test_all_of_ci_stays_under_75_minutes() -> None:
    """The limits of all steps together, with five minutes for installing."""
    minutes = [int(found) for found in re.findall(r"_MINUTES=(\d+)", SCRIPT.read_text(encoding="utf-8"))]
    assert len(minutes) == 5
    assert sum(minutes) + 5 <= 75


def test_too_long_is_ended(run: Run) -> None:
    """A command over its minutes is ended with all it started, and the run fails."""
    started = time.monotonic()
    done = run(test="\t@sleep 600\n")
    assert done.returncode == 1
    assert "make test was ended after 0.05 minutes" in done.stdout
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("command", ["sleep 601", "env -i ./sleep 601"])
def test_nothing_is_left_behind(run: Run, tmp_path: Path, command: str) -> None:
    """A process that outlives its command is named and ended, and the run fails, though the command passed.

    It is known by its environment, or, where that is gone, by its program in the checkout.
    """
    shutil.copy(str(shutil.which("sleep")), tmp_path / "sleep")
    left = f"\t@(setsid {command} >/dev/null 2>&1 & echo $$! >pid); echo it ran\n"
    done = run(test=left)
    assert done.returncode == 1
    assert "sleep 601" in done.stdout
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
