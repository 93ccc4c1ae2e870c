"""`.ci/run` fails when it must, ends what takes too long, and finds what is left behind."""

from __future__ import annotations

import os
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
    """`run(test=..., vllm=...)`: the script beside a Makefile with these two recipes; a step may take 3 s."""

    def finished(test: str = FINE, vllm: str = FINE) -> subprocess.CompletedProcess[str]:
        script = tmp_path / ".ci" / "run"
        script.parent.mkdir()
        text = SCRIPT.read_text(encoding="utf-8")
        assert "TEST_MINUTES=20" in text
        script.write_text(text.replace("TEST_MINUTES=20", "TEST_MINUTES=0.05"), encoding="utf-8")
        (tmp_path / "Makefile").write_text(f"test:\n{test}\ntest-vllm:\n{vllm}", encoding="utf-8")
        # Not as a child of another make, whose jobserver this one must not look for.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["bash", str(script)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, stdin=subprocess.PIPE)

    return finished


def test_both_commands_run(run: Run) -> None:
    """Both test commands run, with an empty standard input, and the script says how long each took."""
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("it ran") == 2
    assert "make test passed in" in done.stdout
    assert "make test-vllm passed in" in done.stdout


@pytest.mark.parametrize("which", ["test", "vllm"])
def test_failure_fails(run: Run, which: str) -> None:
    """A failing command fails the whole, and the other one runs all the same."""
    done = run(**{which: "\t@exit 3\n"})
    assert done.returncode == 1
    assert done.stdout.count("it ran") == 1


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
