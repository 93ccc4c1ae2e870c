"""tests/vllm/install.sh: what it says when it can't work, and that it works only once. `make test-vllm` runs it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "vllm" / "install.sh"


def run(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHON": python}
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, env=environ)


def test_folder_must_be_named() -> None:
    """Without a folder it says how it is used, exit code 2."""
    done = run()
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_python_must_run(tmp_path: Path) -> None:
    """A Python that does not run is named, with what to do."""
    done = run(str(tmp_path / "venv"), python="/bin/false")
    assert done.returncode == 1
    assert done.stderr == "/bin/false does not run, or lacks venv: point PYTHON at Python 3.11 or newer\n"


def test_finished_installation_is_left_alone(tmp_path: Path) -> None:
    """With the stamp of this script and this Python it ends at once, says nothing and changes nothing."""
    stamp = tmp_path / ".warmroute-installed"
    stamp.write_text(f"{hashlib.sha256(SCRIPT.read_bytes()).hexdigest()} {platform.python_version()}\n")
    done = run(str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == [stamp]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    """A folder with something in it that is no virtual environment is refused, and keeps what it has."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    done = run(str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path} is in use and no virtual environment: name another folder\n"
    assert precious.read_text() == "mine"


def test_failed_installation_leaves_no_stamp(tmp_path: Path) -> None:
    """A stamp of another version does not count; a failure of the installation is shown and not stamped."""
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "pyvenv.cfg").touch()
    stamp = venv / ".warmroute-installed"
    stamp.write_text("another\n")
    # A Python that tells its version and can do nothing else.
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$1" in -c) echo 3.11.0;; *) echo no room >&2; exit 1;; esac\n')
    python.chmod(0o755)
    done = run(str(venv), python=str(python))
    assert done.returncode == 1
    assert "no room" in done.stderr
    assert not stamp.exists()
